// The particle environment as a WebAssembly module: the arithmetic of headrace.rl.envs.particles, in the same order.
// Built by tools/build_wasm.py; imports nothing. See headrace.rl.wasm.module for what each export is.
#include <stdint.h>

#define N 10000
#define CELLS 125  // int(1 / width)
#define SPOTS 100  // the smallest square that holds N
#define GRID 8
#define OBS (GRID * GRID + 4)

static const double radius = 0.003989422804014327;  // discs cover half of the box
static const float width = 0.007978845387697220f;
static const float tau = 0.002f, stiffness = 12000.0f, damping = 20.0f;
static const double tilt = 4.0, speed = 0.5;
static const int max_steps = 500;

typedef struct {
  int64_t episode;
  int32_t steps, ended;
  float corner_x, corner_y;
  float x[N], y[N], vx[N], vy[N];
} Box;

static int32_t cell[N], order[N], start[CELLS * CELLS + 2];
static float sx[N], sy[N], svx[N], svy[N];

static inline float maxf(float a, float b) { return a > b ? a : b; }
static inline double clip(double a) { return a < -1.0 ? -1.0 : a > 1.0 ? 1.0 : a; }
static inline int32_t clamp(int32_t a, int32_t most) { return a < 0 ? 0 : a > most ? most : a; }

// Philox4x32-10 keyed by (seed, environment, episode, step): headrace.rl.envs.random.
typedef struct {
  uint64_t key, place, step, draws, kept;
} Stream;

static void philox(uint64_t counter01, uint64_t counter23, uint64_t key, uint64_t out[2]) {
  const uint64_t low = 0xFFFFFFFFu;
  uint64_t c0 = counter01 & low, c1 = counter01 >> 32, c2 = counter23 & low, c3 = counter23 >> 32;
  uint64_t k0 = key & low, k1 = key >> 32;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53u * c0, p1 = 0xCD9E8D57u * c2;
    c0 = (p1 >> 32) ^ c1 ^ k0;
    c1 = p1 & low;
    c2 = (p0 >> 32) ^ c3 ^ k1;
    c3 = p0 & low;
    k0 = (k0 + 0x9E3779B9u) & low;
    k1 = (k1 + 0xBB67AE85u) & low;
  }
  out[0] = c0 | c1 << 32;
  out[1] = c2 | c3 << 32;
}

static double uniform(Stream* rng, double low, double high) {
  const uint64_t drawn = rng->draws++;
  uint64_t bits = rng->kept;
  if (drawn % 2 == 0) {
    uint64_t block[2];
    philox((drawn >> 1 & 0xFFFFFFFFu) | rng->step << 32, rng->place, rng->key, block);
    bits = block[0];
    rng->kept = block[1];
  }
  return low + (high - low) * ((double)(bits >> 11) * 0x1p-53);
}

static void observe(const Box* box, float* out) {
  const double share = (double)(GRID * GRID) / N;
  for (int k = 0; k < GRID * GRID; ++k) out[k] = 0.0f;
  double mean_x = 0, mean_y = 0;
  for (int i = 0; i < N; ++i) {
    const int32_t column = clamp((int32_t)(box->x[i] * (float)GRID), GRID - 1);
    const int32_t row = clamp((int32_t)(box->y[i] * (float)GRID), GRID - 1);
    out[row * GRID + column] = (float)(out[row * GRID + column] + share);
    mean_x += box->vx[i];
    mean_y += box->vy[i];
  }
  out[GRID * GRID] = (float)(mean_x / N);
  out[GRID * GRID + 1] = (float)(mean_y / N);
  out[GRID * GRID + 2] = box->corner_x;
  out[GRID * GRID + 3] = box->corner_y;
}

static void begin(Box* box, uint64_t seed, uint64_t env, int64_t episode, float* obs) {
  Stream rng = {seed, env << 32 | (uint64_t)(episode & 0xFFFFFFFF), 0, 0, 0};
  box->episode = episode;
  box->steps = box->ended = 0;
  for (int i = 0; i < N; ++i) {
    box->x[i] = (float)((i % SPOTS + 0.5) / SPOTS);
    box->y[i] = (float)((i / SPOTS + 0.5) / SPOTS);
    box->vx[i] = (float)uniform(&rng, -speed, speed);
    box->vy[i] = (float)uniform(&rng, -speed, speed);
  }
  box->corner_x = uniform(&rng, 0.0, 1.0) < 0.5 ? 1.0f : -1.0f;
  box->corner_y = uniform(&rng, 0.0, 1.0) < 0.5 ? 1.0f : -1.0f;
  observe(box, obs);
}

static void sort_by_cell(const Box* box) {
  for (int c = 0; c < CELLS * CELLS + 2; ++c) start[c] = 0;
  for (int i = 0; i < N; ++i) {
    const int32_t column = clamp((int32_t)(box->x[i] * (float)CELLS), CELLS - 1);
    const int32_t row = clamp((int32_t)(box->y[i] * (float)CELLS), CELLS - 1);
    cell[i] = row * CELLS + column;
    ++start[cell[i] + 2];
  }
  for (int c = 1; c <= CELLS * CELLS; ++c) start[c + 1] += start[c];
  for (int i = 0; i < N; ++i) {
    const int32_t at = start[cell[i] + 1]++;
    order[at] = i;
    sx[at] = box->x[i];
    sy[at] = box->y[i];
    svx[at] = box->vx[i];
    svy[at] = box->vy[i];
  }
}

static float advance(Box* box, const float* action) {
  sort_by_cell(box);
  const float pull_x = (float)(tilt * clip(action[0])), pull_y = (float)(tilt * clip(action[1]));
  const float near = width * width, low = (float)radius, high = 1.0f - (float)radius;
  double total = 0;
  for (int row = 0; row < CELLS; ++row) {
    for (int column = 0; column < CELLS; ++column) {
      const int left = column > 0 ? column - 1 : 0, right = column < CELLS - 1 ? column + 1 : CELLS - 1;
      for (int32_t a = start[row * CELLS + column]; a < start[row * CELLS + column + 1]; ++a) {
        const float px = sx[a], py = sy[a], pvx = svx[a], pvy = svy[a];
        float ax = pull_x, ay = pull_y;
        for (int r = row > 0 ? row - 1 : 0; r <= (row < CELLS - 1 ? row + 1 : CELLS - 1); ++r) {
          const int32_t last = start[r * CELLS + right + 1];
          for (int32_t b = start[r * CELLS + left]; b < last; ++b) {
            const float dx = px - sx[b], dy = py - sy[b];
            const float square = dx * dx + dy * dy;
            if (square < near && b != a) {
              const float distance = __builtin_sqrtf(maxf(square, 1e-12f));
              const float nx = dx / distance, ny = dy / distance;
              const float closing = (pvx - svx[b]) * nx + (pvy - svy[b]) * ny;
              const float push = stiffness * (width - distance) - damping * closing;
              ax += push * nx;
              ay += push * ny;
            }
          }
        }
        const int32_t i = order[a];
        ax += stiffness * maxf(low - px, 0.0f) - stiffness * maxf(px - high, 0.0f);
        ay += stiffness * maxf(low - py, 0.0f) - stiffness * maxf(py - high, 0.0f);
        box->vx[i] = pvx + tau * ax;
        box->vy[i] = pvy + tau * ay;
        box->x[i] = px + tau * box->vx[i];
        box->y[i] = py + tau * box->vy[i];
        const float far_x = box->x[i] - (box->corner_x > 0 ? 1.0f : 0.0f);
        const float far_y = box->y[i] - (box->corner_y > 0 ? 1.0f : 0.0f);
        total += __builtin_sqrt((double)(far_x * far_x + far_y * far_y));
      }
    }
  }
  return (float)(-total / N);
}

__attribute__((export_name("state_bytes"))) int32_t state_bytes(int32_t n) { return n * (int32_t)sizeof(Box); }

__attribute__((export_name("reset"))) void reset(Box* state, int32_t n, uint64_t seed, int32_t first, int32_t last,
                                                 float* obs) {
  (void)n;
  for (int32_t i = first; i < last; ++i) begin(state + i, seed, (uint64_t)i, 0, obs + i * OBS);
}

__attribute__((export_name("step"))) void step(Box* state, int32_t n, uint64_t seed, int32_t first, int32_t last,
                                               const float* actions, float* obs, float* final_obs, float* reward,
                                               uint8_t* terminated, uint8_t* truncated, int32_t autoreset) {
  (void)n;
  for (int32_t i = first; i < last; ++i) {
    Box* box = state + i;
    terminated[i] = truncated[i] = 0;
    reward[i] = 0;
    if (box->ended) {
      if (autoreset == 0) truncated[i] = 1;
      else begin(box, seed, (uint64_t)i, box->episode + 1, obs + i * OBS);
      continue;
    }
    reward[i] = advance(box, actions + 2 * i);
    observe(box, obs + i * OBS);
    if (++box->steps < max_steps) continue;
    truncated[i] = 1;
    if (autoreset == 1) {
      for (int k = 0; k < OBS; ++k) final_obs[i * OBS + k] = obs[i * OBS + k];
      begin(box, seed, (uint64_t)i, box->episode + 1, obs + i * OBS);
    } else {
      box->ended = 1;
    }
  }
}
