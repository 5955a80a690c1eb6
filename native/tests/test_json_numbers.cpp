#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "headrace/error.hpp"
#include "headrace/json_numbers.hpp"

using headrace::Error;
using headrace::format_json_numbers;
using headrace::parse_json_numbers;

namespace {

template <class T>
std::vector<T> parsed(std::string_view text, std::vector<std::ptrdiff_t> shape) {
  std::size_t count = 1;
  for (const auto dim : shape) count *= static_cast<std::size_t>(dim);
  std::vector<T> out(count);
  parse_json_numbers<T>(text, shape, out);
  return out;
}

}  // namespace

TEST(json_numbers_flat_and_nested_mean_the_same) {
  const std::vector<int> wanted{1, 2, 3, 4, 5, 6};
  CHECK(parsed<int>("[1,2,3,4,5,6]", {2, 3}) == wanted);
  CHECK(parsed<int>(" [ [1, 2,3 ],\n[4,5,6]\t] ", {2, 3}) == wanted);
  CHECK(parsed<int>("[[[1],[2],[3]],[[4],[5],[6]]]", {2, 3, 1}) == wanted);
  CHECK(parsed<int>("[]", {0}).empty());
  CHECK(parsed<int>("[[],[]]", {2, 0}).empty());
  CHECK(parsed<int>("[7]", {}) == std::vector<int>{7});
}

TEST(json_numbers_round_trip_every_bit_pattern_tried) {
  std::mt19937_64 random(1);
  std::vector<float> floats;
  std::vector<double> doubles;
  for (int i = 0; i < 20000; ++i) {
    const auto bits = random();
    float f = 0;
    double d = 0;
    std::memcpy(&f, &bits, sizeof f);
    std::memcpy(&d, &bits, sizeof d);
    if (std::isfinite(f)) floats.push_back(f);
    if (std::isfinite(d)) doubles.push_back(d);
  }
  const auto size = [](const auto& all) {
    return std::vector<std::ptrdiff_t>{static_cast<std::ptrdiff_t>(all.size())};
  };
  CHECK(parsed<float>(format_json_numbers<float>(floats), size(floats)) == floats);
  CHECK(parsed<double>(format_json_numbers<double>(doubles), size(doubles)) == doubles);
}

TEST(json_numbers_extremes) {
  using Limits = std::numeric_limits<float>;
  CHECK(parsed<float>("[3.4028235e38,-3.4028235e38,1e-50,1e-999,-0.0]", {5})[0] == Limits::max());
  CHECK(parsed<float>("[1e-999]", {1})[0] == 0.0F);
  CHECK(std::signbit(parsed<float>("[-0.0]", {1})[0]));
  CHECK(parsed<std::uint64_t>("[18446744073709551615,0,-0]", {3})[0] == std::numeric_limits<std::uint64_t>::max());
  CHECK(parsed<std::int64_t>("[-9223372036854775808]", {1})[0] == std::numeric_limits<std::int64_t>::min());
  CHECK(parsed<double>("[1e308, 5, 5E0, 5e+0, 0.5e1]", {5})[4] == 5.0);
  const std::array<float, 3> odd{std::nanf(""), Limits::infinity(), 5.0F};
  CHECK(format_json_numbers<float>(odd) == "[null,null,5.0]");
  CHECK(format_json_numbers<int>(std::span<const int>{}) == "[]");
}

TEST(json_numbers_refuse_what_is_not_a_number_of_the_type) {
  for (const char* text :
       {"",        "[",    "]",    "[1",    "[1,", "[1,]",  "[,1]",  "[1 2]", "[+1]",    "[01]",
        "[1.]",    "[.5]", "[1e]", "[1e+]", "[-]", "[nan]", "[inf]", "[0x1]", "[true]",  "[null]",
        "[\"1\"]", "[1]x", "[1]]", "[[1]]", "{}",  "1",     "[1,2]", "[]",    "[1e999]", "[-1e999]"}) {
    CHECK_THROWS(Error, parsed<double>(text, {1}));
  }
  CHECK_THROWS(Error, parsed<float>("[3.5e38]", {1}));
  for (const char* text : {"[1.0]", "[1e0]", "[128]", "[-129]"}) CHECK_THROWS(Error, parsed<std::int8_t>(text, {1}));
  CHECK_THROWS(Error, parsed<std::uint8_t>("[-1]", {1}));
  for (const char* text :
       {"[[1,2],[3]]", "[[1,2],[3,4],[5,6]]", "[[1,2]]", "[[1,2],3]", "[[1,2],[3,[4]]]", "[[[1]]]"}) {
    CHECK_THROWS(Error, parsed<int>(text, {2, 2}));
  }
}

TEST(json_numbers_survive_any_cut) {
  const std::string text = "[[1.5e3,-2],[3,4.25]]";
  for (std::size_t cut = 0; cut < text.size(); ++cut) {
    CHECK_THROWS(Error, parsed<float>(std::string_view(text).substr(0, cut), {2, 2}));
  }
}
