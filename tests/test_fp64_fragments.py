"""What the threads of an fp64 kernel read and sum up (C++, compiled here for the host), for whole tiles."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cutlass_sk.jit.toolchain import find_toolchain

DRIVER = r"""
#include <cutlass_sk/fp64_fragments.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <vector>

using cutlass_sk::Fp64Operand;
using cutlass_sk::Fp64Sums;

#define EXPECT(condition) \
  if (!(condition)) std::printf("%s:%d: %s\n", __PRETTY_FUNCTION__, __LINE__, #condition), std::exit(1)

struct Element {
  int row, k;
};

/// Reads as the main loop does, and returns the element that each lane gets: [block][slot][half][lane].
template <class Operand, int rows, int tile_k>
std::vector<Element> read(int group) {
  std::map<uint32_t, Element> memory;
  for (int row = 0; row < rows; ++row) {
    for (int k = 0; k < tile_k; ++k) EXPECT(memory.insert({Operand::placed(row, k), Element{row, k}}).second);
  }
  EXPECT(memory.size() * 8 == Operand::kStageBytes && memory.rbegin()->first == Operand::kStageBytes - 8);

  constexpr int kWidth = Operand::kNarrow ? 8 : 16, kTogether = 128 / kWidth;
  std::vector<Element> elements(tile_k / 8 * 4 * 32);
  for (int block = 0; block < tile_k / 8; ++block) {
    auto const at = [&](int slot, int half, int lane) -> Element& {
      return elements[((block * 2 + slot) * 2 + half) * 32 + lane];
    };
    for (int which = 0; which < 4; ++which) {
      int const slot = which / 2, half = which % 2;
      if (!Operand::kNarrow && (Operand::kKMajor ? slot : half) == 1) continue;  // comes with the other
      std::set<uint32_t> banks;
      for (int lane = 0; lane < 32; ++lane) {
        uint32_t const stage = 3 * Operand::kStageBytes;  // any; groups may be counted at the start or on the way
        uint32_t const address =
            ((stage + Operand::start(group, lane)) ^ Operand::flip(block, slot, half)) + Operand::step(0, block, half) - stage;
        EXPECT(address == (Operand::start(0, lane) ^ Operand::flip(block, slot, half)) + Operand::step(group, block, half));
        EXPECT(address % kWidth == 0 && address < uint32_t(Operand::kStageBytes));
        if (lane % kTogether == 0) banks.clear();
        EXPECT(banks.insert(address % 128 / kWidth).second);
        at(slot, half, lane) = memory.at(address);
        if (!Operand::kNarrow) at(Operand::kKMajor ? 1 : slot, Operand::kKMajor ? half : 1, lane) = memory.at(address + 8);
      }
    }
  }
  return elements;
}

template <bool k_major_x, bool k_major_y, int tile_x, int tile_y, int tile_k, int warps>
void check() {
  constexpr bool kNarrow = k_major_x && k_major_y;
  using X = Fp64Operand<k_major_x, kNarrow, tile_x, tile_k>;
  using Y = Fp64Operand<k_major_y, kNarrow, tile_y, tile_k>;
  using Sums = Fp64Sums<X, Y, tile_x, tile_y, warps>;
  EXPECT(Sums::kWarpsX * Sums::kWarpsY == warps && Sums::kCount * warps * 32 == tile_x * tile_y);

  std::set<std::pair<int, int>> sums;
  for (int warp = 0; warp < warps; ++warp) {
    for (int i = 0; i < Sums::kGroupsX; ++i) {
      for (int j = 0; j < Sums::kGroupsY; ++j) {
        auto const x = read<X, tile_x, tile_k>(Sums::first_group_x(warp) + i);
        auto const y = read<Y, tile_y, tile_k>(Sums::first_group_y(warp) + j);
        std::set<int> indices;
        for (int lane = 0; lane < 32; ++lane) {
          for (int number = 0; number < 8; ++number) {
            int const half_x = number / 4, half_y = number / 2 % 2, column = number % 2;
            int const row_x = Sums::first_x(warp, lane) + Sums::step_x(i, half_x);
            int const row_y = Sums::first_y(warp, lane) + Sums::step_y(j, half_y, column);
            EXPECT(sums.insert({row_x, row_y}).second);
            int const sum = Sums::index(i, j, half_x, half_y, column);
            EXPECT(lane != 0 || indices.insert(sum).second);
            // The instruction sums up what the lanes 4 g + t hold of x and 4 g' + t of y; this lane gets g = lane / 4 and
            // g' = 2 (lane % 4) + column.
            std::set<int> ks;
            for (int block = 0; block < tile_k / 8; ++block) {
              for (int slot = 0; slot < 2; ++slot) {
                for (int t = 0; t < 4; ++t) {
                  Element const a = x[((block * 2 + slot) * 2 + half_x) * 32 + lane / 4 * 4 + t];
                  Element const b = y[((block * 2 + slot) * 2 + half_y) * 32 + (lane % 4 * 2 + column) * 4 + t];
                  EXPECT(a.row == row_x && b.row == row_y && a.k == b.k && a.k / 8 == block && ks.insert(a.k).second);
                }
              }
            }
            EXPECT(int(ks.size()) == tile_k);
          }
          for (int along_x = 0; along_x < 2; ++along_x) {
            std::set<int> paired;
            for (int number = 0; number < 4; ++number) {
              auto const first = Sums::pair(along_x, i, j, number, 0), second = Sums::pair(along_x, i, j, number, 1);
              EXPECT(paired.insert(first.index()).second && paired.insert(second.index()).second);
              int const dx = Sums::step_x(i, second.half_x) - Sums::step_x(i, first.half_x);
              int const dy = Sums::step_y(j, second.half_y, second.column) - Sums::step_y(j, first.half_y, first.column);
              EXPECT(along_x ? dx == Sums::kDistanceX && dy == 0 : dx == 0 && dy == 1);
              EXPECT(along_x || (Sums::first_y(warp, lane) + Sums::step_y(j, first.half_y, first.column)) % 2 == 0);
              EXPECT(!along_x || Sums::kDistanceX != 1 || (Sums::first_x(warp, lane) + Sums::step_x(i, first.half_x)) % 2 == 0);
            }
          }
        }
      }
    }
  }
  EXPECT(int(sums.size()) == tile_x * tile_y);
}

template <bool k_major_x, bool k_major_y>
void check_tiles() {
  check<k_major_x, k_major_y, 64, 64, 16, 4>();
  check<k_major_x, k_major_y, 64, 64, 32, 4>();
  check<k_major_x, k_major_y, 32, 64, 16, 4>();
  check<k_major_x, k_major_y, 64, 32, 16, 4>();
  check<k_major_x, k_major_y, 128, 64, 32, 4>();
  check<k_major_x, k_major_y, 128, 128, 16, 8>();
}

int main() {
  check_tiles<true, true>();
  check_tiles<true, false>();
  check_tiles<false, true>();
  check_tiles<false, false>();
  return 0;
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fp64_fragments")
    source, program = directory / "driver.cpp", directory / "driver"
    source.write_text(DRIVER)
    toolchain = find_toolchain()
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{toolchain.own_include}"]
    subprocess.run([str(toolchain.host_compiler), *flags, "-o", str(program), str(source)], check=True)
    return program


def test_each_product_is_summed_up_once_from_reads_without_bank_conflicts(driver: Path) -> None:
    """For all layouts and several tiles: x and y meet with the same k, and each sum is where the epilogue looks for it."""
    done = subprocess.run([driver], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
