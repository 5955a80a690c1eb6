import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidInput
from headrace.serve.protocol import TensorSpec
from headrace.serve.tensors import DTYPES, check_tensors, datatype, example

specs = st.lists(
    st.builds(
        TensorSpec,
        st.text(min_size=1, max_size=4),
        st.sampled_from(list(DTYPES.values())),
        st.lists(st.sampled_from([-1, 0, 1, 2, 3]), max_size=4).map(tuple),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda spec: spec.name,
)


@given(specs)
def test_an_example_fits_its_specs(declared):
    check_tensors(declared, example(declared))


@given(specs, st.data())
def test_one_fault_is_always_found_and_named(declared, data):
    tensors = example(declared)
    spec = data.draw(st.sampled_from(declared))
    match data.draw(st.sampled_from(["missing", "dtype", "rank", "axis", "extra"])):
        case "missing":
            del tensors[spec.name]
        case "dtype":
            tensors[spec.name] = np.zeros(tensors[spec.name].shape, np.complex64)
        case "rank" if spec.shape:
            tensors[spec.name] = tensors[spec.name][None]
        case "axis" if any(dim > 0 for dim in spec.shape):
            axis = next(i for i, dim in enumerate(spec.shape) if dim > 0)
            tensors[spec.name] = np.repeat(tensors[spec.name], 2, axis)
        case _:
            tensors["surplus"] = np.zeros(1)
            spec = TensorSpec("surplus", np.dtype(np.float64), ())
    with pytest.raises(InvalidInput) as caught:
        check_tensors(declared, tensors)
    assert repr(spec.name) in str(caught.value)


@given(st.sampled_from([(), (3,), (2, 0), (2, 3)]))
def test_a_spec_without_a_rank_takes_any_shape(shape):
    check_tensors([TensorSpec("x", np.dtype(np.float32), ())], {"x": np.zeros(shape, np.float32)})


def test_byte_swapped_arrays_are_refused_not_misread():
    spec = TensorSpec("x", np.dtype(np.float32), (-1,))
    with pytest.raises(InvalidInput, match="tensor 'x': expected FP32, got byte-swapped float32"):
        check_tensors([spec], {"x": np.ones(3, ">f4")})


def test_names_of_datatypes_go_both_ways():
    assert {datatype(dtype): dtype for dtype in DTYPES.values()} == dict(DTYPES)
    assert datatype(np.dtype(np.complex64)) == "complex64"
