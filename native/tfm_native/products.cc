// Matrix products of oneDNN that programs compiled by XLA call through its foreign function interface.
//
// All matrices are row-major and without gaps. Nothing here touches Python, so several programs multiply at
// the same time, and an interrupted Python does not stop a product halfway.

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "xla/ffi/api/ffi.h"

// Functions of oneDNN, which return 0 for success. The header of oneDNN declares only the first.
extern "C" int dnnl_gemm_u8s8s32(char transpose_a, char transpose_b, char offset_kind, int64_t m, int64_t n,
                                 int64_t k, float alpha, const uint8_t* a, int64_t lda, uint8_t a_zero,
                                 const int8_t* b, int64_t ldb, int8_t b_zero, float beta, int32_t* c,
                                 int64_t ldc, const int32_t* c_offset);
extern "C" int dnnl_gemm_bf16bf16f32(char transpose_a, char transpose_b, int64_t m, int64_t n, int64_t k,
                                     float alpha, const void* a, int64_t lda, const void* b, int64_t ldb,
                                     float beta, float* c, int64_t ldc);

namespace ffi = xla::ffi;
using Matrix = ffi::Span<const int64_t>;  // the two sizes of a matrix

namespace {

const pid_t loading_process = getpid();

// Sets the number of threads for products of the calling thread. The threads of OpenMP do not survive a fork,
// and a product that waited for them in the child would never end.
void SetThreads(int threads) {
  omp_set_num_threads(getpid() == loading_process ? std::max(1, threads) : 1);
}

ffi::Error AsError(int status) {
  if (status == 0) return ffi::Error::Success();
  return ffi::Error::Internal("oneDNN failed with status " + std::to_string(status));
}

// Computes x @ weights.T for x [rows, inputs] and weights [outputs, inputs]. oneDNN rejects empty matrices.
int MultiplyInt8(Matrix x_shape, Matrix weights_shape, const uint8_t* x, const int8_t* weights,
                           int32_t* product) {
  int64_t rows = x_shape[0], inputs = x_shape[1], outputs = weights_shape[0];
  std::fill_n(product, inputs == 0 ? rows * outputs : 0, 0);
  if (rows == 0 || inputs == 0 || outputs == 0) return 0;
  // Two batches decode at the same time, so each of them gets half of the cores.
  SetThreads(omp_get_num_procs() / 2);
  int32_t no_offset = 0;
  return dnnl_gemm_u8s8s32('N', 'T', 'F', rows, outputs, inputs, 1.0f, x, inputs, 0, weights, inputs, 0, 0.0f,
                           product, outputs, &no_offset);
}

// Computes x @ y after transposing the matrices for which the flags are set.
int MultiplyBfloat16(Matrix x_shape, Matrix y_shape, bool transpose_x, bool transpose_y,
                               const void* x, const void* y, float* product) {
  int64_t rows = x_shape[transpose_x ? 1 : 0], inner = x_shape[transpose_x ? 0 : 1];
  int64_t columns = y_shape[transpose_y ? 0 : 1];
  std::fill_n(product, inner == 0 ? rows * columns : 0, 0.0f);
  if (rows == 0 || inner == 0 || columns == 0) return 0;
  SetThreads(omp_get_num_procs());
  return dnnl_gemm_bf16bf16f32(transpose_x ? 'T' : 'N', transpose_y ? 'T' : 'N', rows, columns, inner, 1.0f, x,
                               x_shape[1], y, y_shape[1], 0.0f, product, columns);
}

ffi::Error CallInt8(ffi::BufferR2<ffi::U8> x, ffi::BufferR2<ffi::S8> weights,
                    ffi::ResultBufferR2<ffi::S32> product) {
  Matrix x_shape = x.dimensions(), weights_shape = weights.dimensions(), shape = product->dimensions();
  if (x_shape[1] != weights_shape[1] || shape[0] != x_shape[0] || shape[1] != weights_shape[0])
    return ffi::Error::InvalidArgument("Expected shapes [rows, inputs], [outputs, inputs], [rows, outputs].");
  return AsError(MultiplyInt8(x_shape, weights_shape, x.typed_data(), weights.typed_data(),
                              product->typed_data()));
}

ffi::Error CallBfloat16(ffi::BufferR2<ffi::BF16> x, ffi::BufferR2<ffi::BF16> y,
                        ffi::ResultBufferR2<ffi::F32> product, bool transpose_x, bool transpose_y) {
  Matrix x_shape = x.dimensions(), y_shape = y.dimensions(), shape = product->dimensions();
  if (x_shape[transpose_x ? 0 : 1] != y_shape[transpose_y ? 1 : 0] ||
      shape[0] != x_shape[transpose_x ? 1 : 0] || shape[1] != y_shape[transpose_y ? 0 : 1])
    return ffi::Error::InvalidArgument("Expected shapes [M, K], [K, N] and [M, N] after transposing.");
  return AsError(MultiplyBfloat16(x_shape, y_shape, transpose_x, transpose_y, x.untyped_data(),
                                  y.untyped_data(), product->typed_data()));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(Int8Product, CallInt8,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR2<ffi::U8>>()
                                  .Arg<ffi::BufferR2<ffi::S8>>()
                                  .Ret<ffi::BufferR2<ffi::S32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(Bfloat16Product, CallBfloat16,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR2<ffi::BF16>>()
                                  .Arg<ffi::BufferR2<ffi::BF16>>()
                                  .Ret<ffi::BufferR2<ffi::F32>>()
                                  .Attr<bool>("transpose_x")
                                  .Attr<bool>("transpose_y"));

// Returns whether sums of 8-bit products are exact. Processors without VNNI add two products in 16 bits first,
// which may not hold them.
extern "C" bool MultipliesInt8() {
  constexpr int64_t inputs = 64, shape[] = {1, inputs};
  uint8_t x[inputs];
  int8_t weights[inputs];
  int32_t product = 0;
  std::fill_n(x, inputs, 255);
  std::fill_n(weights, inputs, 127);
  return MultiplyInt8({shape, 2}, {shape, 2}, x, weights, &product) == 0 &&
         product == inputs * 255 * 127;
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
