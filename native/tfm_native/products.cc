// Matrix products of oneDNN that programs compiled by XLA call through its foreign function interface.
//
// All matrices are row-major and without gaps. Nothing here touches Python, so several programs multiply at
// the same time, and an interrupted Python does not stop a product halfway.

#include <immintrin.h>
#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "xla/ffi/api/ffi.h"

// Functions of oneDNN, which return 0 for success. The header of oneDNN declares only the first two.
extern "C" int dnnl_sgemm(char transpose_a, char transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                          const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
                          int64_t ldc);
extern "C" int dnnl_gemm_u8s8s32(char transpose_a, char transpose_b, char offset_kind, int64_t m, int64_t n,
                                 int64_t k, float alpha, const uint8_t* a, int64_t lda, uint8_t a_zero,
                                 const int8_t* b, int64_t ldb, int8_t b_zero, float beta, int32_t* c,
                                 int64_t ldc, const int32_t* c_offset);
extern "C" int dnnl_gemm_bf16bf16f32(char transpose_a, char transpose_b, int64_t m, int64_t n, int64_t k,
                                     float alpha, const void* a, int64_t lda, const void* b, int64_t ldb,
                                     float beta, float* c, int64_t ldc);

// Compiles a function for several processors. The fastest version that can run is chosen when it is loaded.
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))

namespace ffi = xla::ffi;
using Matrix = ffi::Span<const int64_t>;  // the two sizes of a matrix

namespace {

const int processors = omp_get_num_procs();  // Each call would be a system call.
bool is_forked = false;
const int is_watching_forks = pthread_atfork(nullptr, nullptr, [] { is_forked = true; });

// Sets the number of threads for products of the calling thread. The threads of OpenMP do not survive a fork,
// and a product that waited for them in the child would never end.
void SetThreads(int threads) { omp_set_num_threads(is_forked ? 1 : std::max(1, threads)); }

ffi::Error AsError(int status) {
  if (status == 0) return ffi::Error::Success();
  return ffi::Error::Internal("oneDNN failed with status " + std::to_string(status));
}

// Quantizes a row of numbers: codes = round(row / scale) + 128. Returns the scale, which is NaN for a row with
// NaN or an infinite number.
FOR_EACH_PROCESSOR
float QuantizeRow(const float* row, int64_t size, uint8_t* codes) {
  uint32_t largest_bits = 0;  // Without the sign, larger bits are larger numbers, and NaN is the largest.
  for (int64_t i = 0; i < size; i++) {
    uint32_t bits;
    std::memcpy(&bits, &row[i], sizeof bits);
    largest_bits = std::max(largest_bits, bits & 0x7fffffff);
  }
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof largest);
  // XLA multiplies by the reciprocal, too. A division would round some scales to a neighbouring number.
  float scale = largest == 0 ? 1.0f : largest * (1.0f / 127.0f);
  for (int64_t i = 0; i < size; i++) {
    // In a float of this size, the last bit has the value 1, so the addition rounds to an even integer.
    float rounded = row[i] / scale + 12582912.0f;
    int32_t bits;
    std::memcpy(&bits, &rounded, sizeof bits);
    codes[i] = static_cast<uint8_t>(bits + 128);
  }
  return std::isfinite(scale) ? scale : std::numeric_limits<float>::quiet_NaN();
}

// Replaces the sums of products in a row of the result by numbers.
FOR_EACH_PROCESSOR
void ScaleRow(float row_scale, const float* scales, const int32_t* excess, int64_t size, float* product) {
  for (int64_t i = 0; i < size; i++) {
    int32_t sum;
    std::memcpy(&sum, &product[i], sizeof sum);
    product[i] = static_cast<float>(sum - excess[i]) * (row_scale * scales[i]);
  }
}

// Computes x @ y for a single row x. It reads y once from the beginning to the end.
FOR_EACH_PROCESSOR
void MultiplyRow(const float* x, const float* __restrict y, int64_t inner, int64_t columns,
                 float* __restrict product) {
  std::fill_n(product, columns, 0.0f);
  int64_t i = 0;
  for (; i + 4 <= inner; i += 4) {
    const float* row = y + i * columns;
    for (int64_t j = 0; j < columns; j++)
      product[j] += x[i] * row[j] + x[i + 1] * row[columns + j] + x[i + 2] * row[2 * columns + j] +
                    x[i + 3] * row[3 * columns + j];
  }
  for (; i < inner; i++)
    for (int64_t j = 0; j < columns; j++) product[j] += x[i] * y[i * columns + j];
}

// oneDNN copies the weights to another order before it multiplies more than one row. For few rows, the copy
// takes longer than the products, and `MultiplyFewRows` is faster on processors with VNNI instructions.
constexpr int64_t max_few_rows = 8;
constexpr int64_t block_outputs = 4;  // The sums of 4 rows and 4 outputs fit into the registers.
constexpr int64_t min_parallel_weights = 1 << 20;  // For fewer weights, starting threads takes too long.
#define FOR_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define INLINE_FOR_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"), always_inline)) inline

bool SuitsFewRows(int64_t rows, int64_t outputs) {
  return rows > 1 && rows <= max_few_rows && outputs >= block_outputs && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

// Returns the four sums of the elements of four vectors.
INLINE_FOR_VNNI __m128i SumElements(__m512i a, __m512i b, __m512i c, __m512i d) {
  __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  // Each quarter contains a part of the four sums.
  __m512i quarters = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  __m256i halves = _mm256_add_epi32(_mm512_castsi512_si256(quarters), _mm512_extracti64x4_epi64(quarters, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}

// Computes the sums of `rows` rows of x and `block_outputs` rows of the weights.
template <int rows>
INLINE_FOR_VNNI void MultiplyBlock(int64_t inputs, int64_t outputs, const uint8_t* x, const int8_t* weights,
                                   int32_t* sums) {
  __m512i products[rows][block_outputs];  // GCC keeps them in registers only if it unrolls the loops.
#pragma GCC unroll 4
  for (int row = 0; row < rows; row++)
    for (int j = 0; j < block_outputs; j++) products[row][j] = _mm512_setzero_si512();
  for (int64_t i = 0; i < inputs; i += 64) {
    __mmask64 mask = inputs - i >= 64 ? ~__mmask64{0} : (__mmask64{1} << (inputs - i)) - 1;
    __m512i columns[block_outputs];
    for (int j = 0; j < block_outputs; j++)
      columns[j] = _mm512_maskz_loadu_epi8(mask, weights + j * inputs + i);
#pragma GCC unroll 4
    for (int row = 0; row < rows; row++) {
      __m512i codes = _mm512_maskz_loadu_epi8(mask, x + row * inputs + i);
      for (int j = 0; j < block_outputs; j++)
        products[row][j] = _mm512_dpbusd_epi32(products[row][j], codes, columns[j]);
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < rows; row++) {
    __m128i row_sums = SumElements(products[row][0], products[row][1], products[row][2], products[row][3]);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums + row * outputs), row_sums);
  }
}

// Computes sums = x @ weights.T for x [rows, inputs] and weights [outputs, inputs], if `SuitsFewRows`. The rows
// are in the inner loop, so that the weights are read once.
FOR_VNNI void MultiplyFewRows(int64_t rows, int64_t inputs, int64_t outputs, const uint8_t* x,
                              const int8_t* weights, int32_t* sums) {
#pragma omp parallel for if (inputs * outputs >= min_parallel_weights)
  for (int64_t block = 0; block < outputs; block += block_outputs) {
    // The last block may overlap the block before it. Both write the same sums.
    int64_t output = std::min(block, outputs - block_outputs);
    const uint8_t* codes = x;
    int32_t* row_sums = sums + output;
    for (int64_t left = rows; left > 0; left -= 4, codes += 4 * inputs, row_sums += 4 * outputs) {
      const int8_t* block_weights = weights + output * inputs;
      if (left >= 4) MultiplyBlock<4>(inputs, outputs, codes, block_weights, row_sums);
      if (left == 3) MultiplyBlock<3>(inputs, outputs, codes, block_weights, row_sums);
      if (left == 2) MultiplyBlock<2>(inputs, outputs, codes, block_weights, row_sums);
      if (left == 1) MultiplyBlock<1>(inputs, outputs, codes, block_weights, row_sums);
    }
  }
}

// Computes sums = x @ weights.T for x [rows, inputs] and weights [outputs, inputs].
int MultiplyIntegers(int64_t rows, int64_t inputs, int64_t outputs, const uint8_t* x, const int8_t* weights,
                     int32_t* sums) {
  // Two batches decode at the same time, so each of them gets half of the cores.
  SetThreads(processors / 2);
  if (SuitsFewRows(rows, outputs)) {
    MultiplyFewRows(rows, inputs, outputs, x, weights, sums);
    return 0;
  }
  int32_t no_offset = 0;
  return dnnl_gemm_u8s8s32('N', 'T', 'F', rows, outputs, inputs, 1.0f, x, inputs, 0, weights, inputs, 0, 0.0f,
                           sums, outputs, &no_offset);
}

// Computes x @ y for bfloat16 after transposing the matrices for which the flags are set.
int MultiplyBfloat16(Matrix x_shape, Matrix y_shape, bool transpose_x, bool transpose_y, const void* x,
                     const void* y, float* product) {
  int64_t rows = x_shape[transpose_x ? 1 : 0], inner = x_shape[transpose_x ? 0 : 1];
  int64_t columns = y_shape[transpose_y ? 0 : 1];
  SetThreads(processors);
  return dnnl_gemm_bf16bf16f32(transpose_x ? 'T' : 'N', transpose_y ? 'T' : 'N', rows, columns, inner, 1.0f, x,
                               x_shape[1], y, y_shape[1], 0.0f, product, columns);
}

// Computes x @ y for float32 after transposing the matrices for which the flags are set.
int MultiplyFloat32(Matrix x_shape, Matrix y_shape, bool transpose_x, bool transpose_y, const float* x,
                    const float* y, float* product) {
  int64_t rows = x_shape[transpose_x ? 1 : 0], inner = x_shape[transpose_x ? 0 : 1];
  int64_t columns = y_shape[transpose_y ? 0 : 1];
  if (rows == 1 && !transpose_y) {
    MultiplyRow(x, y, inner, columns, product);
    return 0;
  }
  SetThreads(processors / 2);
  return dnnl_sgemm(transpose_x ? 'T' : 'N', transpose_y ? 'T' : 'N', rows, columns, inner, 1.0f, x, x_shape[1],
                    y, y_shape[1], 0.0f, product, columns);
}

ffi::Error CallQuantized(ffi::BufferR2<ffi::F32> x, ffi::BufferR2<ffi::S8> weights, ffi::BufferR1<ffi::F32> scales,
                    ffi::BufferR1<ffi::S32> excess, ffi::ResultBufferR2<ffi::F32> product) {
  int64_t rows = x.dimensions()[0], inputs = x.dimensions()[1], outputs = weights.dimensions()[0];
  Matrix shape = product->dimensions();
  if (weights.dimensions()[1] != inputs || scales.dimensions()[0] != outputs ||
      excess.dimensions()[0] != outputs || shape[0] != rows || shape[1] != outputs)
    return ffi::Error::InvalidArgument(
        "Expected shapes [rows, inputs], [outputs, inputs], [outputs], [outputs] and [rows, outputs].");
  float* result = product->typed_data();
  if (rows == 0 || inputs == 0 || outputs == 0) {  // oneDNN rejects these.
    std::fill_n(result, rows * outputs, 0.0f);
    return ffi::Error::Success();
  }
  std::vector<uint8_t> codes(rows * inputs);
  std::vector<float> row_scales(rows);
  for (int64_t row = 0; row < rows; row++)
    row_scales[row] = QuantizeRow(x.typed_data() + row * inputs, inputs, &codes[row * inputs]);
  // The sums are as large as the result, so they are computed in its memory.
  int status = MultiplyIntegers(rows, inputs, outputs, codes.data(), weights.typed_data(),
                                reinterpret_cast<int32_t*>(result));
  for (int64_t row = 0; row < rows; row++)
    ScaleRow(row_scales[row], scales.typed_data(), excess.typed_data(), outputs, result + row * outputs);
  return AsError(status);
}

// Checks the shapes of a product of two matrices, and calls a function that computes it.
template <typename X, typename Y, typename Product, typename Multiply>
ffi::Error CallProduct(X x, Y y, Product product, bool transpose_x, bool transpose_y, Multiply multiply) {
  Matrix x_shape = x.dimensions(), y_shape = y.dimensions(), shape = product->dimensions();
  if (x_shape[transpose_x ? 0 : 1] != y_shape[transpose_y ? 1 : 0] ||
      shape[0] != x_shape[transpose_x ? 1 : 0] || shape[1] != y_shape[transpose_y ? 0 : 1])
    return ffi::Error::InvalidArgument("Expected shapes [M, K], [K, N] and [M, N] after transposing.");
  if (x_shape[0] == 0 || x_shape[1] == 0 || y_shape[0] == 0 || y_shape[1] == 0) {  // oneDNN rejects these.
    std::fill_n(product->typed_data(), product->element_count(), 0.0f);
    return ffi::Error::Success();
  }
  return AsError(multiply(x_shape, y_shape, transpose_x, transpose_y, x.typed_data(), y.typed_data(),
                          product->typed_data()));
}

ffi::Error CallBfloat16(ffi::BufferR2<ffi::BF16> x, ffi::BufferR2<ffi::BF16> y,
                        ffi::ResultBufferR2<ffi::F32> product, bool transpose_x, bool transpose_y) {
  return CallProduct(x, y, product, transpose_x, transpose_y, MultiplyBfloat16);
}

ffi::Error CallFloat32(ffi::BufferR2<ffi::F32> x, ffi::BufferR2<ffi::F32> y,
                       ffi::ResultBufferR2<ffi::F32> product, bool transpose_x, bool transpose_y) {
  return CallProduct(x, y, product, transpose_x, transpose_y, MultiplyFloat32);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(QuantizedProduct, CallQuantized,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Arg<ffi::BufferR2<ffi::S8>>()
                                  .Arg<ffi::BufferR1<ffi::F32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Ret<ffi::BufferR2<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(Bfloat16Product, CallBfloat16,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR2<ffi::BF16>>()
                                  .Arg<ffi::BufferR2<ffi::BF16>>()
                                  .Ret<ffi::BufferR2<ffi::F32>>()
                                  .Attr<bool>("transpose_x")
                                  .Attr<bool>("transpose_y"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(Float32Product, CallFloat32,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Ret<ffi::BufferR2<ffi::F32>>()
                                  .Attr<bool>("transpose_x")
                                  .Attr<bool>("transpose_y"));

// Returns whether sums of 8-bit products are exact. Processors without VNNI add two products in 16 bits first,
// which may not hold them.
extern "C" bool MultipliesInt8() {
  constexpr int64_t inputs = 64;
  uint8_t x[inputs];
  int8_t weights[inputs];
  int32_t sum = 0;
  std::fill_n(x, inputs, 255);
  std::fill_n(weights, inputs, 127);
  return MultiplyIntegers(1, inputs, 1, x, weights, &sum) == 0 && sum == inputs * 255 * 127;
}

// Returns whether oneDNN multiplies bfloat16, which ONEDNN_MAX_CPU_ISA can forbid, by instructions for it.
extern "C" bool MultipliesBfloat16() {
  constexpr int64_t shape[] = {2, 2};
  const uint16_t threes[] = {0x4040, 0x4040, 0x4040, 0x4040};
  float product[4] = {};
  return __builtin_cpu_supports("avx512bf16") &&
         MultiplyBfloat16({shape, 2}, {shape, 2}, false, false, threes, threes, product) == 0 &&
         std::all_of(product, product + 4, [](float x) { return x == 18.0f; });
}
