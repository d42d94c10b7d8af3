// Kernels of a given number of CTAs, time and kind, with no memory traffic: what is left is placement.
//
// Every CTA stamps when it started, when its peers let it go and when it ended, on the GPU's nanosecond
// clock, and its SM. Built by executor/spin_library.py into a shared library with a C interface; every
// function returns a CUDA error code, 0 for success.
#include <cuda_runtime.h>

constexpr int kMaxRanks = 8;

struct Stamp {
  long long start, go, end;
  int sm, pad;
};

// The fields mirror SpinArgs in executor/spin_library.py.
struct SpinArgs {
  Stamp* stamps;            // one per CTA
  long long tile_ns;        // time of one tile
  long long deadline_ns;    // longest wait for a peer or a signal
  int tiles;                // of the whole launch; CTA i takes i, i + CTAs, ... or pulls them
  unsigned* next_tile;      // tiles are pulled from here (dynamic); null: static
  unsigned* placed;         // how many CTAs have started (exchange); null: no peers
  unsigned* flags[kMaxRanks];  // each rank's arrival words for this exchange, kMaxRanks of them
  int rank, ranks;
  unsigned wait_on_start;   // 1: peers are waited for before the first tile
  unsigned arrive_on_end;   // 1: arrival is announced by the last CTA to end, not to start
  unsigned* raises;         // block counters that this kernel raises; null: none
  unsigned* polls;          // block counters that this kernel waits for; null: none
  int blocks;               // number of blocks; tile t belongs to block t * blocks / tiles
  unsigned threshold;       // increments that complete a polled block
  int* error;               // set to 1 + CTA when a deadline passed
};

__device__ __forceinline__ long long now_ns() {
  long long t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

__device__ __forceinline__ unsigned read_word(const unsigned* word) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ void announce(const SpinArgs& a) {
  __threadfence_system();
  if (atomicAdd(a.placed, 1u) != gridDim.x - 1) return;
  for (int peer = 0; peer < a.ranks; ++peer) {
    asm volatile("st.release.sys.global.u32 [%0], 1;" ::"l"(a.flags[peer] + a.rank) : "memory");
  }
}

__device__ bool wait_until(const SpinArgs& a, const unsigned* word, unsigned value) {
  const long long began = now_ns();
  while (read_word(word) < value) {
    if (now_ns() - began > a.deadline_ns) {
      atomicExch(a.error, 1 + blockIdx.x);
      return false;
    }
  }
  return true;
}

__device__ void run_tile(const SpinArgs& a, int tile) {
  const int block = a.blocks > 0 ? static_cast<int>(1LL * tile * a.blocks / a.tiles) : 0;
  if (a.polls != nullptr && !wait_until(a, a.polls + block, a.threshold)) return;
  const long long began = now_ns();
  while (now_ns() - began < a.tile_ns) {
  }
  if (a.raises != nullptr) {
    __threadfence();
    atomicAdd(a.raises + block, 1u);
  }
}

__global__ void spin(SpinArgs a) {
  if (threadIdx.x != 0) return;
  Stamp stamp;
  stamp.start = now_ns();
  asm("mov.u32 %0, %smid;" : "=r"(stamp.sm));
  if (a.placed != nullptr && !a.arrive_on_end) announce(a);
  if (a.wait_on_start) {
    for (int peer = 0; peer < a.ranks; ++peer) {
      if (!wait_until(a, a.flags[a.rank] + peer, 1u)) break;
    }
  }
  stamp.go = now_ns();
  if (a.next_tile != nullptr) {
    for (int tile = atomicAdd(a.next_tile, 1u); tile < a.tiles; tile = atomicAdd(a.next_tile, 1u)) {
      run_tile(a, tile);
    }
  } else {
    for (int tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) run_tile(a, tile);
  }
  if (a.placed != nullptr && a.arrive_on_end) announce(a);
  stamp.end = now_ns();
  a.stamps[blockIdx.x] = stamp;
}

// Rank 0 sends its turn's number and waits for the answer; the other side stamps when it saw it.
__global__ void ping_pong(unsigned* mine, unsigned* theirs, int leads, int turns, long long* out,
                          long long deadline_ns, int* error) {
  for (int turn = 1; turn <= turns; ++turn) {
    const long long began = now_ns();
    if (leads) asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(theirs), "r"(turn) : "memory");
    while (read_word(mine) < static_cast<unsigned>(turn)) {
      if (now_ns() - began > deadline_ns) {
        *error = 1;
        return;
      }
    }
    const long long seen = now_ns();
    if (!leads) asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(theirs), "r"(turn) : "memory");
    out[2 * (turn - 1)] = began;
    out[2 * (turn - 1) + 1] = seen;
  }
}

extern "C" {

int spin_prepare(int max_smem_bytes) {
  return cudaFuncSetAttribute(spin, cudaFuncAttributeMaxDynamicSharedMemorySize, max_smem_bytes);
}

int spin_launch(void* stream, int ctas, int threads, int smem_bytes, int gang, SpinArgs* args) {
  void* params[] = {args};
  auto s = static_cast<cudaStream_t>(stream);
  if (gang) {
    return cudaLaunchCooperativeKernel(reinterpret_cast<void*>(spin), dim3(ctas), dim3(threads), params,
                                       smem_bytes, s);
  }
  return cudaLaunchKernel(reinterpret_cast<void*>(spin), dim3(ctas), dim3(threads), params, smem_bytes, s);
}

int spin_ping_pong(void* stream, void* mine, void* theirs, int leads, int turns, void* out,
                   long long deadline_ns, void* error) {
  ping_pong<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<unsigned*>(mine), static_cast<unsigned*>(theirs), leads, turns,
      static_cast<long long*>(out), deadline_ns, static_cast<int*>(error));
  return cudaGetLastError();
}

// Memory that peers in other processes may open: its address, and a handle of 64 bytes.
int shared_alloc(size_t bytes, void** address, void* handle) {
  int code = cudaMalloc(address, bytes);
  if (code == 0) code = cudaMemset(*address, 0, bytes);
  if (code == 0) code = cudaDeviceSynchronize();
  if (code == 0) code = cudaIpcGetMemHandle(static_cast<cudaIpcMemHandle_t*>(handle), *address);
  return code;
}

int shared_open(const void* handle, void** address) {
  return cudaIpcOpenMemHandle(address, *static_cast<const cudaIpcMemHandle_t*>(handle),
                              cudaIpcMemLazyEnablePeerAccess);
}

int shared_clear(void* address, size_t bytes) {
  int code = cudaMemset(address, 0, bytes);
  return code ? code : cudaDeviceSynchronize();
}

int shared_close(void* address) { return cudaIpcCloseMemHandle(address); }
int shared_free(void* address) { return cudaFree(address); }

const char* error_name(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }
}
