// Packs weight matrices into panels, and unpacks them.
#include "packed_matrix.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "float_bits.h"
#include "panel_columns.h"
#include "rounding.h"

namespace pellucid {
namespace {

// Most inputs of a row whose products of 8-bit codes are summed in 32 bits over the whole row.
constexpr std::int64_t kMaxChannelInputs = 65536;

std::int64_t panel_bytes(const FormatInfo& info, std::int64_t num_inputs) {
  const std::int64_t scale_bytes =
      has_channel_scales(info) ? kPanelOutputs * std::int64_t{sizeof(float)} : 0;
  return ceil_div(num_inputs, info.tile_inputs) * tile_bytes(info) +
         ceil_div(num_inputs, kBlockInputs) * factor_bytes(info) + scale_bytes;
}

// One output's place in a packed matrix.
struct Column {
  const FormatInfo& info;
  std::int64_t panel;      // byte where its panel begins
  std::int64_t tiles_end;  // byte where the panel's tiles end
  std::int64_t column;     // in the panel

  std::int64_t cell(std::int64_t index) const {
    const std::int64_t step_bytes = kPanelOutputs * info.cell_bytes;
    const std::int64_t tile_steps = tile_weight_bytes(info) / step_bytes;
    return tile(index / tile_steps) + index % tile_steps * step_bytes + column * info.cell_bytes;
  }
  std::int64_t group_scale(std::int64_t group) const {
    return tile(group) + tile_weight_bytes(info) + group_scale_bytes(info) * column;
  }
  std::int64_t zero_point(std::int64_t group) const {
    return tile(group) + zero_points_at(info) + column;
  }
  std::int64_t minimum(std::int64_t group) const {
    return tile(group) + minimums_at(info) + group_scale_bytes(info) * column;
  }
  std::int64_t scale_factor(std::int64_t group) const {
    return tiles_end + factors_of_tile(info, group) + 2 * column;
  }
  std::int64_t minimum_factor(std::int64_t group) const {
    return scale_factor(group) + 2 * kPanelOutputs;
  }
  std::int64_t channel_scale() const { return tiles_end + column * std::int64_t{sizeof(float)}; }

 private:
  std::int64_t tile(std::int64_t index) const { return panel + index * tile_bytes(info); }
};

Column column_of(const FormatInfo& info, const PackedView& view, std::int64_t output) {
  const std::int64_t panel = output / kPanelOutputs * view.panel_bytes;
  return {info, panel, panel + view.num_tiles * tile_bytes(info), output % kPanelOutputs};
}

// The two ways in which the bytes of a cell differ from the bytes of the source.
std::uint32_t flip_signs(std::uint32_t codes) { return codes ^ 0x80808080u; }

// Reorders eight codes of 4 bits from the order of a row (two neighbours in a byte) to that of a
// cell.
std::uint32_t pack_nibbles(std::uint32_t codes) {
  const auto spread = [](std::uint32_t four) {
    const std::uint32_t two = (four | four << 8) & 0x00ff00ffu;
    return (two | two << 4) & 0x0f0f0f0fu;
  };
  return spread(codes & 0xffffu) | spread(codes >> 16) << 4;
}

std::uint32_t unpack_nibbles(std::uint32_t cell) {
  const auto gather = [](std::uint32_t four) {
    const std::uint32_t two = (four | four >> 4) & 0x00ff00ffu;
    return (two | two >> 8) & 0xffffu;
  };
  return gather(cell & 0x0f0f0f0fu) | gather(cell >> 4 & 0x0f0f0f0fu) << 16;
}

std::uint32_t keep(std::uint32_t cell) { return cell; }

using Reorder = std::uint32_t (*)(std::uint32_t);

// Rows are unpacked in pieces: long enough to be written as a stream, short enough for the pieces
// of 32 rows to stay in the first-level cache. A multiple of a row's bytes in a tile, in every
// format.
constexpr std::int64_t kPieceBytes = 512;

// Calls move(byte in the row, its place in the packed matrix) for the cells of a column that begin
// in bytes [begin, end) of the row; `begin` is where a tile begins.
template <int kCellBytes, class Move>
void for_each_cell(const Column& column, std::int64_t begin, std::int64_t end, Move move) {
  constexpr std::int64_t kStepBytes = kPanelOutputs * kCellBytes;
  const std::int64_t tile_row_bytes = tile_weight_bytes(column.info) / kPanelOutputs;
  const std::int64_t tile_stride = tile_bytes(column.info);
  std::int64_t tile = column.cell(begin / kCellBytes);
  while (begin < end) {
    const std::int64_t tile_end = std::min(begin + tile_row_bytes, end);
    std::int64_t place = tile;
    for (; begin < tile_end; begin += kCellBytes, place += kStepBytes) move(begin, place);
    tile += tile_stride;
  }
}

// Copies the rows of a panel, `row_bytes` each, to their cells.
template <class Cell, Reorder kReorder>
void pack_rows(const Column& first, const std::uint8_t* rows, std::int64_t row_bytes,
               std::int64_t num_rows, std::uint8_t* packed) {
  const std::int64_t step_bytes = kPanelOutputs * std::int64_t{sizeof(Cell)};
  const StepPlaces places{first.cell(0), tile_weight_bytes(first.info) / step_bytes,
                          tile_bytes(first.info)};
  rows_to_columns<Cell>(rows, row_bytes, num_rows, places, packed,
                        [](Cell cell) { return static_cast<Cell>(kReorder(cell)); });
}

// Copies bytes [begin, end) of a row back from their cells. The last cell may be longer than what
// is left of the row.
template <int kCellBytes, Reorder kReorder>
void unpack_cells(const Column& column, const std::uint8_t* packed, std::int64_t begin,
                  std::int64_t end, std::uint8_t* row) {
  for_each_cell<kCellBytes>(column, begin, end, [&](std::int64_t at, std::int64_t place) {
    std::uint32_t cell = 0;
    std::memcpy(&cell, packed + place, kCellBytes);
    cell = kReorder(cell);
    std::memcpy(row + at, &cell,
                static_cast<std::size_t>(std::min<std::int64_t>(kCellBytes, end - at)));
  });
}

// Codes of 5 and 6 bits.
struct UpperBits {
  const FormatInfo& info;
  const int bits;        // of a code beyond its lower four
  const int zero_point;  // of codes in a packed matrix

  explicit UpperBits(const FormatInfo& format)
      : info(format), bits(format.weight_bits - 4), zero_point(implied_zero_point(format)) {}

  // The places of one column's bytes: what holds input `input` of the tile that begins at `tile`.
  std::int64_t low_place(std::int64_t tile, std::int64_t column, int input) const {
    return tile + input / 8 * kStepBytes + column * kCellBytes + input % 4;
  }
  std::int64_t high_place(std::int64_t tile, std::int64_t column, int input) const {
    return tile + info.tile_inputs / 8 * kStepBytes + column * kCellBytes + input % 4;
  }
  static int low_shift(int input) { return input % 8 < 4 ? 0 : 4; }
  int high_shift(int input) const { return input / 4 * bits; }

  int code(const std::uint8_t* packed, std::int64_t tile, std::int64_t column, int input) const {
    const int low = packed[low_place(tile, column, input)] >> low_shift(input) & 15;
    const int high = packed[high_place(tile, column, input)] >> high_shift(input);
    return low | (high & ((1 << bits) - 1)) << 4;
  }

  static constexpr std::int64_t kCellBytes = 4, kStepBytes = kPanelOutputs * kCellBytes;
};

// Packs the codes of a panel's rows, a byte each.
void pack_upper_rows(const Column& first, const std::uint8_t* rows, std::int64_t row_bytes,
                     std::int64_t num_rows, std::uint8_t* packed) {
  const UpperBits layout(first.info);
  const int tile_inputs = first.info.tile_inputs;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    for (std::int64_t begin = 0; begin < row_bytes; begin += tile_inputs) {
      const std::int64_t tile = first.panel + begin / tile_inputs * tile_bytes(first.info);
      const auto count = static_cast<int>(std::min<std::int64_t>(tile_inputs, row_bytes - begin));
      std::uint8_t low[32] = {}, high[4] = {};
      for (int i = 0; i < count; ++i) {
        const auto stored = static_cast<std::int8_t>(rows[row * row_bytes + begin + i]);
        const int code = stored + layout.zero_point;
        const int byte = i / 8 * 4 + i % 4;
        low[byte] |= static_cast<std::uint8_t>((code & 15) << UpperBits::low_shift(i));
        high[i % 4] |= static_cast<std::uint8_t>(code >> 4 << layout.high_shift(i));
      }
      for (int i = 0; i < tile_inputs; i += 8) {
        std::memcpy(packed + layout.low_place(tile, row, i), low + i / 2, sizeof(high));
      }
      std::memcpy(packed + layout.high_place(tile, row, 0), high, sizeof(high));
    }
  }
}

// Copies the codes [begin, end) of a row back.
void unpack_upper_row(const Column& column, const std::uint8_t* packed, std::int64_t begin,
                      std::int64_t end, std::uint8_t* row) {
  const UpperBits layout(column.info);
  const int tile_inputs = column.info.tile_inputs;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t tile = column.panel + i / tile_inputs * tile_bytes(column.info);
    const auto within = static_cast<int>(i % tile_inputs);
    row[i] = static_cast<std::uint8_t>(layout.code(packed, tile, column.column, within) -
                                       layout.zero_point);
  }
}

struct CellCopy {
  void (*pack)(const Column& first, const std::uint8_t* rows, std::int64_t row_bytes,
               std::int64_t num_rows, std::uint8_t* packed);
  void (*unpack)(const Column&, const std::uint8_t* packed, std::int64_t begin, std::int64_t end,
                 std::uint8_t* row);
};

CellCopy cell_copy(const FormatInfo& info) {
  switch (info.weight_bits) {
    case 4:
      return {&pack_rows<std::uint32_t, pack_nibbles>, &unpack_cells<4, unpack_nibbles>};
    case 5:
    case 6:
      return {&pack_upper_rows, &unpack_upper_row};
    case 8:
      return {&pack_rows<std::uint32_t, flip_signs>, &unpack_cells<4, flip_signs>};
    default:
      return info.cell_bytes == 2
                 ? CellCopy{&pack_rows<std::uint16_t, keep>, &unpack_cells<2, keep>}
                 : CellCopy{&pack_rows<std::uint32_t, keep>, &unpack_cells<4, keep>};
  }
}

std::int64_t bytes_of_row(const FormatInfo& info, std::int64_t num_inputs) {
  return ceil_div(num_inputs * source_bits(info), 8);
}

// Calls move(output, begin, end) for each piece of the rows in panels [panel_begin, panel_end).
template <class Move>
void for_each_piece(const FormatInfo& info, const PackedView& view, std::int64_t panel_begin,
                    std::int64_t panel_end, Move move) {
  const std::int64_t row_bytes = bytes_of_row(info, view.num_inputs);
  for (std::int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const std::int64_t first = panel * kPanelOutputs;
    const std::int64_t last = std::min(first + kPanelOutputs, view.num_outputs);
    for (std::int64_t begin = 0; begin < row_bytes; begin += kPieceBytes) {
      const std::int64_t end = std::min(begin + kPieceBytes, row_bytes);
      for (std::int64_t output = first; output < last; ++output) move(output, begin, end);
    }
  }
}

void copy_group_scale(const FormatInfo& info, void* to, const void* from) {
  std::memcpy(to, from, static_cast<std::size_t>(group_scale_bytes(info)));
}

template <class T>
T load_as(const std::uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// A group's scale or minimum. `factor` is the address of its factor, if it has one.
float load_scale(const FormatInfo& info, const std::uint8_t* stored, const std::uint8_t* factor) {
  switch (info.scale) {
    case ScaleKind::kExponent:
      return float_from_bits(std::uint32_t{*stored} << 23);
    case ScaleKind::kProduct:
      return float_from_f16(load_as<std::uint16_t>(factor)) *
             static_cast<float>(load_as<std::int8_t>(stored));
    default:
      return float_from_f16(load_as<std::uint16_t>(stored));
  }
}

// The rows of the source in a panel.
struct PanelRows {
  std::int64_t begin, count;
};

// Packs an array [N, num_steps] of numbers into steps of 32; the first step is at byte `place`.
template <class T>
void pack_numbers(const void* array, std::int64_t num_steps, const PanelRows& rows,
                  std::int64_t place, std::int64_t step_distance, std::uint8_t* packed) {
  const std::int64_t row_bytes = num_steps * std::int64_t{sizeof(T)};
  rows_to_columns<T>(static_cast<const std::uint8_t*>(array) + rows.begin * row_bytes, row_bytes,
                     rows.count, {place, 1, step_distance}, packed,
                     [](T number) { return number; });
}

// Packs the scales, zero points, minimums and factors of a panel, whose first column is `first`.
void pack_scales(const WeightSource& source, const Column& first, std::int64_t num_tiles,
                 const PanelRows& rows, std::uint8_t* packed) {
  const FormatInfo& info = first.info;
  if (has_channel_scales(info)) {
    return pack_numbers<float>(source.scales, 1, rows, first.channel_scale(), 0, packed);
  }
  const auto pack_groups =
      group_scale_bytes(info) == 1 ? &pack_numbers<std::uint8_t> : &pack_numbers<std::uint16_t>;
  const std::int64_t tile = tile_bytes(info);
  pack_groups(source.scales, num_tiles, rows, first.group_scale(0), tile, packed);
  if (info.has_minimums) {
    pack_groups(source.minimums, num_tiles, rows, first.minimum(0), tile, packed);
  }
  if (info.has_zero_points) {
    pack_numbers<std::uint8_t>(source.zero_points, num_tiles, rows, first.zero_point(0), tile,
                               packed);
  }
  if (!has_factors(info)) return;
  const std::int64_t num_blocks = ceil_div(num_tiles, kBlockInputs / info.tile_inputs);
  const std::int64_t block = factor_bytes(info);
  pack_numbers<std::uint16_t>(source.scale_factors, num_blocks, rows, first.scale_factor(0), block,
                              packed);
  if (info.has_minimums) {
    pack_numbers<std::uint16_t>(source.minimum_factors, num_blocks, rows, first.minimum_factor(0),
                                block, packed);
  }
}

// Calls move(place in the packed matrix, index in an array [N, blocks], whether it is a factor of
// minimums) for each factor of an output.
template <class Move>
void for_each_factor(const Column& column, std::int64_t output, std::int64_t num_tiles, Move move) {
  const std::int64_t block_tiles = kBlockInputs / column.info.tile_inputs;
  const std::int64_t num_blocks = ceil_div(num_tiles, block_tiles);
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    const std::int64_t at = output * num_blocks + block;
    move(column.scale_factor(block * block_tiles), at, false);
    if (column.info.has_minimums) move(column.minimum_factor(block * block_tiles), at, true);
  }
}

}  // namespace

PackedMatrix::PackedMatrix(Format format, Activations activations, std::int64_t num_outputs,
                           std::int64_t num_inputs)
    : format_(format),
      activations_(activations),
      num_panels_(ceil_div(num_outputs, kPanelOutputs)) {
  const FormatInfo& info = format_info(format);
  assert(num_outputs >= 1 && num_inputs >= 1);
  if (has_channel_scales(info) && num_inputs > kMaxChannelInputs) {
    throw std::invalid_argument(std::string(info.name) + ": a matrix has " +
                                std::to_string(num_inputs) + " inputs, allowed are up to " +
                                std::to_string(kMaxChannelInputs) + "; int8 has no such limit");
  }
  view_.panel_bytes = panel_bytes(info, num_inputs);
  view_.num_outputs = num_outputs;
  view_.num_inputs = num_inputs;
  view_.num_tiles = ceil_div(num_inputs, info.tile_inputs);
}

PackedMatrix::PackedMatrix(Format format, std::int64_t num_outputs, std::int64_t num_inputs,
                           Activations activations, std::shared_ptr<WeightMemory> memory)
    : PackedMatrix(format, activations, num_outputs, num_inputs) {
  shared_ = std::move(memory);
  std::byte* bytes = shared_ != nullptr ? shared_->take(num_bytes()) : nullptr;
  if (bytes == nullptr) {
    shared_.reset();
    own_ = AlignedBuffer(num_bytes());
    bytes = own_.data();
  }
  panels_ = reinterpret_cast<std::uint8_t*>(bytes);
  view_.panels = panels_;
}

PackedMatrix PackedMatrix::without_memory(Format format, std::int64_t num_outputs,
                                          std::int64_t num_inputs, Activations activations) {
  return {format, activations, num_outputs, num_inputs};
}

void PackedMatrix::note_read() const {
  if (shared_ != nullptr) {
    shared_->note_read(reinterpret_cast<const std::byte*>(panels_), num_bytes());
  }
}

void PackedMatrix::pack(const WeightSource& source, std::int64_t panel_begin,
                        std::int64_t panel_end) {
  for (std::int64_t panel = panel_begin; panel < panel_end; ++panel) {
    pack_panel(source, panel * kPanelOutputs, panel);
  }
}

void PackedMatrix::pack_panel(const WeightSource& rows, std::int64_t panel) {
  pack_panel(rows, 0, panel);
}

void PackedMatrix::pack_panel(const WeightSource& source, std::int64_t first_row,
                              std::int64_t panel) {
  const FormatInfo& info = format_info(format_);
  const std::int64_t row_bytes = bytes_of_row(info, num_inputs());
  const auto* const rows = static_cast<const std::uint8_t*>(source.weights);
  const std::int64_t output = panel * kPanelOutputs;
  const PanelRows from{first_row, std::min<std::int64_t>(kPanelOutputs, num_outputs() - output)};
  const Column first = column_of(info, view_, output);
  cell_copy(info).pack(first, rows + first_row * row_bytes, row_bytes, from.count, panels_);
  if (info.is_integer) pack_scales(source, first, view_.num_tiles, from, panels_);
}

void PackedMatrix::unpack(const WeightTarget& target, std::int64_t panel_begin,
                          std::int64_t panel_end) const {
  const FormatInfo& info = format_info(format_);
  const CellCopy copy = cell_copy(info);
  const std::int64_t row_bytes = bytes_of_row(info, num_inputs());
  const std::uint8_t* const packed = view_.panels;
  auto* const rows = static_cast<std::uint8_t*>(target.weights);
  for_each_piece(info, view_, panel_begin, panel_end,
                 [&](std::int64_t output, std::int64_t begin, std::int64_t end) {
                   copy.unpack(column_of(info, view_, output), packed, begin, end,
                               rows + output * row_bytes);
                 });
  if (!info.is_integer) return;
  const std::int64_t last = std::min(panel_end * kPanelOutputs, num_outputs());
  for (std::int64_t output = panel_begin * kPanelOutputs; output < last; ++output) {
    const Column column = column_of(info, view_, output);
    if (has_channel_scales(info)) {
      std::memcpy(static_cast<float*>(target.scales) + output, packed + column.channel_scale(),
                  sizeof(float));
    }
    if (!has_group_scales(info)) continue;
    const std::int64_t scale_bytes = group_scale_bytes(info);
    for (std::int64_t g = 0; g < view_.num_tiles; ++g) {
      const std::int64_t group = output * view_.num_tiles + g;
      copy_group_scale(info, static_cast<std::byte*>(target.scales) + group * scale_bytes,
                       packed + column.group_scale(g));
      if (info.has_zero_points) target.zero_points[group] = packed[column.zero_point(g)];
      if (info.has_minimums) {
        copy_group_scale(info, static_cast<std::byte*>(target.minimums) + group * scale_bytes,
                         packed + column.minimum(g));
      }
    }
    if (!has_factors(info)) continue;
    for_each_factor(column, output, view_.num_tiles,
                    [&](std::int64_t place, std::int64_t at, bool is_minimum) {
                      std::memcpy((is_minimum ? target.minimum_factors : target.scale_factors) + at,
                                  packed + place, sizeof(std::uint16_t));
                    });
  }
}

void PackedMatrix::gather_row(std::int64_t output, float* row) const {
  assert(output >= 0 && output < num_outputs());
  const FormatInfo& info = format_info(format_);
  const Column column = column_of(info, view_, output);
  const std::uint8_t* const packed = view_.panels;
  const int cell_inputs = info.cell_bytes * 8 / info.weight_bits;

  float scale = 1.0f, minimum = 0.0f;
  int zero_point = implied_zero_point(info);
  if (has_channel_scales(info)) scale = load_as<float>(packed + column.channel_scale());
  for (std::int64_t i = 0; i < num_inputs(); ++i) {
    if (has_group_scales(info) && i % info.tile_inputs == 0) {
      const std::int64_t group = i / info.tile_inputs;
      scale =
          load_scale(info, packed + column.group_scale(group), packed + column.scale_factor(group));
      if (info.has_zero_points) zero_point = packed[column.zero_point(group)];
      if (info.has_minimums) {
        minimum =
            load_scale(info, packed + column.minimum(group), packed + column.minimum_factor(group));
      }
    }
    if (has_upper_bits(info)) {
      const std::int64_t tile = column.panel + i / info.tile_inputs * tile_bytes(info);
      const int code =
          UpperBits(info).code(packed, tile, column.column, static_cast<int>(i % info.tile_inputs));
      row[i] = scale * static_cast<float>(code - zero_point) + minimum;
      continue;
    }
    const std::uint8_t* const cell = packed + column.cell(i / cell_inputs);
    const std::int64_t within = i % cell_inputs;
    switch (format_) {
      case Format::kF32:
        row[i] = load_as<float>(cell);
        break;
      case Format::kF16:
        row[i] = float_from_f16(load_as<std::uint16_t>(cell));
        break;
      case Format::kBF16:
        row[i] = float_from_bf16(load_as<std::uint16_t>(cell + 2 * within));
        break;
      case Format::kInt8:
      case Format::kInt8Channel:
      case Format::kInt8Min:
        row[i] = scale * static_cast<float>(cell[within] - zero_point) + minimum;
        break;
      case Format::kInt4:
      case Format::kInt4G128:
      case Format::kInt4Zp:
      case Format::kInt4G128Zp:
      case Format::kInt4Min:
      case Format::kInt4K:
      case Format::kInt4K16:
      case Format::kInt4G64:
      case Format::kInt4G64Zp:
      case Format::kInt4S16: {
        const int code = cell[within % 4] >> (within < 4 ? 0 : 4) & 0x0f;
        row[i] = scale * static_cast<float>(code - zero_point) + minimum;
        break;
      }
      case Format::kMxfp4:
      case Format::kIq4Nl:
      case Format::kIq4Xs:
      case Format::kNf4: {
        const int code = cell[within % 4] >> (within < 4 ? 0 : 4) & 0x0f;
        row[i] = scale * static_cast<float>(codebook_of(info)[code]);
        break;
      }
      case Format::kInt5K:
      case Format::kInt6K16:
        break;  // above
    }
  }
}

std::size_t packed_bytes(Format format, std::int64_t num_outputs, std::int64_t num_inputs) {
  const std::int64_t num_panels = ceil_div(num_outputs, kPanelOutputs);
  return static_cast<std::size_t>(num_panels * panel_bytes(format_info(format), num_inputs));
}

}  // namespace pellucid
