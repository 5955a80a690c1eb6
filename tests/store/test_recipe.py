import tomllib

import pytest

from headrace.errors import ConfigError, Conflict, InvalidInput, NotFound
from headrace.store.names import check_model
from headrace.store.pull import pull_model, pull_recipe
from headrace.store.recipe import load_recipe, recipe_names
from headrace.store.sources import open_source, split_pin
from headrace.store.verify import verify


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_are_pinned_and_complete(name):
    recipe, configs = load_recipe(name)
    assert recipe.description
    for part in recipe.model:
        uri, pin = split_pin(part.uri)
        assert pin, f"{part.name}: the content is not pinned"
        assert uri.count("==") == uri.count("pypi://") > 0, f"{part.name}: a version is not pinned"
        open_source(uri)
        config = tomllib.loads(configs[part.config].decode())
        assert config["backend"]
        assert config["file"] == part.file
    for part in recipe.pipeline:
        assert tomllib.loads(configs[part.config].decode())["stage"]
    assert name in [part.name for part in [*recipe.pipeline, *recipe.model]]
    assert check_model(name)


def test_the_recipes_of_the_readme_are_shipped():
    assert {"gemma3-270m", "ocr", "smollm2", "vad"} <= set(recipe_names())


def test_an_unknown_recipe_names_the_known_ones():
    with pytest.raises(NotFound, match=r"no recipe 'orc'.*did you mean ocr\? recipes: .*ocr, .*vad$"):
        load_recipe("orc")
    with pytest.raises(NotFound, match=r"no recipe '\.\./vad'"):
        load_recipe("../vad")


@pytest.mark.parametrize(
    ("recipe", "error", "message"),
    [
        ("description = 1", ConfigError, "description"),
        ('description = ""\nextra = 1', ConfigError, "extra"),
        ("not toml", ConfigError, r"recipe\.toml"),
        ('description = ""\n[[pipeline]]\nname = "../x"\nconfig = "c"', InvalidInput, "model name"),
        ('description = ""\n[[pipeline]]\nname = "x"\nconfig = "../c"', InvalidInput, r"recipe\.toml: path"),
        ('description = ""\n[[pipeline]]\nname = "x"\nconfig = "absent"', ConfigError, "absent"),
    ],
)
def test_a_bad_recipe_names_its_file_or_key(write_recipe, recipe, error, message):
    folder = write_recipe(recipe, {})
    with pytest.raises(error, match=message):
        load_recipe("demo", folder)


def test_a_pipeline_does_not_take_the_name_of_a_model(repository, install, write_recipe):
    install("p", {"a": b"x"})
    write_recipe('description = ""\n[[pipeline]]\nname = "p"\nconfig = "c"', {"c": "x = 1\n"})
    with pytest.raises(Conflict, match="is a model"):
        pull_recipe(repository, "demo")


def test_a_model_does_not_take_the_name_of_a_pipeline(repository, write_recipe, tmp_path):
    write_recipe('description = ""\n[[pipeline]]\nname = "p"\nconfig = "c"', {"c": '[[stage]]\nop = "x"\n'})
    pull_recipe(repository, "demo")
    (tmp_path / "m.onnx").write_bytes(b"x")
    with pytest.raises(Conflict, match=r"'p' in .* is a pipeline"):
        pull_model(repository, str(tmp_path / "m.onnx"), name="p")
    assert repository.versions("p") == []


def test_a_config_may_be_written_before_its_model_is_pulled(repository, tmp_path):
    (repository.root / "m").mkdir(parents=True)
    (repository.root / "m/headrace.toml").write_text('backend = "onnx"\nfile = "x.onnx"\n')
    (tmp_path / "m.onnx").write_bytes(b"x")
    assert pull_model(repository, str(tmp_path / "m.onnx")).config == "unchanged"
    assert "x.onnx" in (repository.root / "m/headrace.toml").read_text()


@pytest.mark.models
@pytest.mark.parametrize("name", recipe_names())
def test_the_real_recipes_install_what_they_pin(repository, name):
    pulled = pull_recipe(repository, name)
    for one in pulled:
        if one.kind == "model":
            assert verify(repository.resolve(one.name)).digest == one.digest
        assert (repository.root / one.name / "headrace.toml").is_file()
    assert {one.status for one in pull_recipe(repository, name)} == {"unchanged"}
