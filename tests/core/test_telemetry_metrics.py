import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from headrace.core.telemetry import LATENCY_S, ROWS, Registry, log_buckets, quantile, render
from headrace.errors import ConfigError


def samples(registry):
    text, _ = render(registry)
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parse_text(text.decode())
        for sample in family.samples
    }


def test_counter_gauge_and_histogram_reach_the_scrape():
    registry = Registry()
    registry.counter("hits", "Hits.", ("model",)).labels(model="a").inc(3)
    depth = registry.gauge("depth", "Depth.").labels()
    depth.set(5)
    depth.inc(2)
    depth.dec()
    registry.histogram("rows", "Rows.", buckets=(1, 2, 4)).observe(2)
    found = samples(registry)
    assert found[("hits_total", ("model", "a"))] == 3
    assert found[("depth",)] == 6
    assert [found[("rows_bucket", ("le", le))] for le in ("1.0", "2.0", "4.0", "+Inf")] == [0, 1, 1, 1]
    assert found[("rows_sum",)] == 2
    assert found[("rows_count",)] == 1


def test_openmetrics_is_negotiated_and_text_is_the_default():
    registry = Registry()
    registry.counter("hits_total", "Hits.").inc()
    text, kind = render(registry)
    assert kind.startswith("text/plain")
    assert b"hits_total 1.0" in text
    text, kind = render(registry, "application/openmetrics-text; version=1.0.0, text/plain;q=0.5")
    assert kind.startswith("application/openmetrics-text")
    (family,) = parse_openmetrics(text.decode())
    assert (family.name, family.samples[0].value) == ("hits", 1)


def test_label_values_are_escaped():
    registry = Registry()
    hostile = 'a"b\\c\nd'
    registry.counter("hits", "Hits.", ("model",)).labels(model=hostile).inc()
    assert samples(registry) == {("hits_total", ("model", hostile)): 1}


def test_labels_resolve_to_one_series_and_can_be_removed():
    registry = Registry()
    hits = registry.counter("hits", "Hits.", ("model", "code"))
    series = hits.labels(model="a", code="200")
    assert hits.labels(code="200", model="a") is series
    assert hits.labels(code="500", model="a") is not series
    hits.remove(model="a", code="500")
    hits.remove(model="never", code="seen")
    assert [values for values, _ in hits.items()] == [("a", "200")]


@pytest.mark.parametrize("labels", [{}, {"model": "a", "code": "1"}, {"modle": "a"}])
def test_wrong_labels_name_the_metric_and_what_was_expected(labels):
    hits = Registry().counter("hits", "Hits.", ("model",))
    with pytest.raises(ConfigError, match=r"hits.*'model'"):
        hits.labels(**labels)


def test_unlabelled_shortcut_of_a_labelled_family_is_an_error():
    with pytest.raises(ConfigError, match="expected labels"):
        Registry().counter("hits", "Hits.", ("model",)).inc()


def test_bad_registrations_are_refused():
    registry = Registry()
    registry.counter("hits_total", "Hits.")
    for make in (registry.counter, registry.gauge, registry.histogram):
        with pytest.raises(ConfigError, match="hits is already registered"):
            make("hits", "Again.")
    for name in ("", "9lives", "a-b", "a b"):
        with pytest.raises(ConfigError, match="metric name"):
            registry.gauge(name, "Bad.")
    for label in ("a-b", "__reserved", ""):
        with pytest.raises(ConfigError, match="label name"):
            registry.gauge("g", "Bad.", (label,))
    with pytest.raises(ConfigError, match="repeated label"):
        registry.gauge("g", "Bad.", ("a", "a"))
    with pytest.raises(ConfigError, match="'le'"):
        registry.histogram("h", "Bad.", ("le",))
    for buckets in ((), (2, 1), (1, 1), (1, float("inf"))):
        with pytest.raises(ConfigError, match="ascending buckets"):
            registry.histogram("h", "Bad.", buckets=buckets)
    with pytest.raises(ConfigError, match="only grows"):
        registry.counter("c", "Bad.").inc(-1)


def test_series_of_a_family_are_bounded():
    registry = Registry(max_series=2)
    hits = registry.counter("hits", "Hits.", ("tenant",))
    for tenant in "abcde":
        hits.labels(tenant=tenant).inc()
    assert {values[0]: series.value for values, series in hits.items()} == {"a": 1, "b": 1, "other": 3}


def test_functions_are_read_at_scrape_and_a_failing_one_shows_as_nan():
    registry = Registry()
    values = iter([1.0, 2.0])
    registry.gauge("live", "Live.").set_function(lambda: next(values))
    registry.gauge("broken", "Broken.").set_function(lambda: 1 / 0)
    registry.counter("seen", "Seen.").labels().set_function(lambda: 7)
    first, second = samples(registry), samples(registry)
    assert (first[("live",)], second[("live",)]) == (1, 2)
    assert np.isnan(first[("broken",)])
    assert first[("seen_total",)] == 7


def test_before_scrape_runs_before_values_are_read():
    registry = Registry()
    depth = registry.gauge("depth", "Depth.")
    registry.before_scrape(lambda: depth.set(9))
    assert samples(registry) == {("depth",): 9}


def test_disabled_registry_takes_everything_and_shows_nothing():
    registry = Registry(enabled=False)
    hits = registry.counter("hits", "Hits.", ("model",))
    assert hits.labels(model="a") is hits.labels(model="b")
    hits.labels(model="a").inc()
    hits.labels(model="a").set_function(lambda: 1)
    gauge = registry.gauge("g", "G.").labels()
    for update in (gauge.set, gauge.inc, gauge.dec):
        update(1)
    gauge.set_function(lambda: 1)
    histogram = registry.histogram("h", "H.").labels()
    histogram.observe(1)
    assert (hits.labels(model="a").value, gauge.value, histogram.count) == (0, 0, 0)
    registry.before_scrape(lambda: pytest.fail("a disabled registry is never scraped"))
    assert samples(registry) == {}
    with pytest.raises(ConfigError, match="expected labels"):
        hits.labels(wrong="a")


def test_no_update_is_lost_between_threads():
    registry = Registry()
    counter, gauge = registry.counter("c", "C.").labels(), registry.gauge("g", "G.").labels()
    histogram = registry.histogram("h", "H.", buckets=(1, 2, 3)).labels()
    start = threading.Barrier(4)

    def work(seed):
        start.wait()
        for i in range(5000):
            counter.inc()
            gauge.inc(2)
            gauge.dec(1)
            histogram.observe((i + seed) % 4 + 0.5)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (counter.value, gauge.value) == (20_000, 20_000)
    assert histogram.snapshot() == ([5000] * 4, 4 * 5000 * 2.0)


def test_a_bound_belongs_to_its_own_bucket():
    histogram = Registry().histogram("h", "H.", buckets=(1, 2)).labels()
    for value in (1, 1.0001, 2, 2.0001):
        histogram.observe(value)
    assert histogram.snapshot()[0] == [1, 2, 1]


def test_default_buckets_are_log_spaced_and_stable():
    assert LATENCY_S[0] == 1e-5
    assert LATENCY_S[-1] == 100.0
    ratios = np.diff(np.log10(LATENCY_S))
    np.testing.assert_allclose(ratios, 0.2, atol=5e-3)
    assert ROWS[-1] == 4096
    assert log_buckets(1, 100, 1) == (1, 10, 100)
    assert log_buckets(1, 30, 1) == (1, 10, 30)
    for bad in ((0, 1, 1), (2, 1, 1), (1, 2, 0), (1, float("inf"), 1)):
        with pytest.raises(ConfigError):
            log_buckets(*bad)


@given(
    st.lists(st.floats(1e-5, 99.0), min_size=1, max_size=300),
    st.floats(0, 1),
)
def test_quantile_is_within_a_bucket_of_numpy(values, q):
    histogram = Registry().histogram("h", "H.").labels()
    for value in values:
        histogram.observe(value)
    exact = float(np.quantile(values, q, method="inverted_cdf"))
    index = int(np.searchsorted(LATENCY_S, exact))
    low, high = (LATENCY_S[index - 1] if index else 0.0), LATENCY_S[index]
    assert low <= histogram.quantile(q) <= high


@given(st.lists(st.lists(st.floats(1e-5, 90.0), max_size=50), min_size=1, max_size=4), st.floats(0, 1))
def test_counts_of_processes_add_up(parts, q):
    registry = Registry()
    family = registry.histogram("h", "H.", ("process",))
    whole = family.labels(process="all")
    for number, values in enumerate(parts):
        for value in values:
            family.labels(process=str(number)).observe(value)
            whole.observe(value)
    summed = np.sum([family.labels(process=str(n)).snapshot()[0] for n in range(len(parts))], axis=0)
    assert summed.tolist() == whole.snapshot()[0]
    np.testing.assert_equal(quantile(LATENCY_S, summed.tolist(), q), whole.quantile(q))


def test_quantile_edges():
    assert np.isnan(quantile((1, 2), [0, 0, 0], 0.5))
    assert quantile((1, 2), [0, 0, 3], 0.5) == 2
    assert quantile((1, 2), [4, 0, 0], 0.5) == 0.5
    assert quantile((-1, 2), [4, 0, 0], 0.5) == -1
    with pytest.raises(ConfigError, match=r"0\.\.1"):
        quantile((1,), [1, 0], 1.5)
    with pytest.raises(ConfigError, match="2 counts"):
        quantile((1,), [1], 0.5)
