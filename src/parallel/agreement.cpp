#include "parallel/agreement.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/tensor.h"

namespace cohort::parallel {
namespace {

std::string join(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// FNV-1a with the length mixed in: equal texts agree for certain, and unequal ones are told apart
// in all but one of 2^64 cases.
std::int64_t fingerprint(const std::string& text) {
  std::uint64_t hash = 14695981039346656037u ^ text.size();
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return static_cast<std::int64_t>(hash);
}

std::vector<std::string> gather_texts(comm::ProcessGroup& group, const std::string& text,
                                      const std::vector<std::int64_t>& sizes) {
  std::int64_t total = 0;
  for (const std::int64_t size : sizes) total += size;
  const Tensor all = Tensor::empty({total}, {.dtype = u8});
  const Tensor mine =
      Tensor::from(std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()),
                   {static_cast<std::int64_t>(text.size())});
  group.all_gather(all, mine, sizes, {.owner = "agreement text"}).synchronize();
  const auto* bytes = reinterpret_cast<const char*>(all.data<std::uint8_t>());
  std::vector<std::string> texts;
  for (const std::int64_t size : sizes) {
    texts.emplace_back(bytes, static_cast<std::size_t>(size));
    bytes += size;
  }
  return texts;
}

}  // namespace

void require_agreement(comm::ProcessGroup& group, const std::string& what,
                       const std::vector<std::string>& lines) {
  if (group.size() == 1) return;
  const std::string text = join(lines);
  const Tensor summaries = Tensor::empty({group.size(), 2}, {.dtype = i64});
  group
      .all_gather(summaries,
                  Tensor::from<std::int64_t>(
                      {fingerprint(text), static_cast<std::int64_t>(text.size())}, {1, 2}),
                  {.owner = "agreement"})
      .synchronize();
  const std::vector<std::int64_t> values = summaries.to_vector<std::int64_t>();
  std::vector<std::int64_t> sizes;
  int other = -1;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank) * 2;
    sizes.push_back(values[at + 1]);
    if (other < 0 && (values[at] != values[0] || values[at + 1] != values[1])) other = rank;
  }
  if (other < 0) return;

  const std::vector<std::string> texts = gather_texts(group, text, sizes);
  const std::vector<std::string> first = split_lines(texts.front());
  const std::vector<std::string> second = split_lines(texts[static_cast<std::size_t>(other)]);
  std::size_t line = 0;
  while (line < first.size() && line < second.size() && first[line] == second[line]) ++line;
  const auto show = [&](const std::vector<std::string>& list) {
    return line < list.size() ? list[line] : std::string("nothing more");
  };
  throw MismatchError(str(what, " differ between ranks: rank 0 has ", first.size(),
                          " entries, rank ", other, " has ", second.size(),
                          "; the first difference: rank 0 says '", show(first), "', rank ", other,
                          " says '", show(second), "' (group ", group.name(),
                          "); build the same model with the same options on every rank"));
}

std::optional<std::pair<int, std::string>> first_failure(comm::ProcessGroup& group,
                                                         const std::string& text) {
  if (group.size() == 1) {
    return text.empty() ? std::nullopt : std::optional(std::pair(0, text));
  }
  const Tensor lengths = Tensor::empty({group.size()}, {.dtype = i64});
  group
      .all_gather(lengths,
                  Tensor::from<std::int64_t>({static_cast<std::int64_t>(text.size())}, {1}),
                  {.owner = "failures"})
      .synchronize();
  const std::vector<std::int64_t> sizes = lengths.to_vector<std::int64_t>();
  const auto failed = std::find_if(sizes.begin(), sizes.end(), [](auto size) { return size > 0; });
  if (failed == sizes.end()) return std::nullopt;
  const auto rank = failed - sizes.begin();
  std::vector<std::string> texts = gather_texts(group, text, sizes);
  return std::pair(static_cast<int>(rank), std::move(texts[static_cast<std::size_t>(rank)]));
}

void require_all_ready(comm::ProcessGroup& group, const std::string& what,
                       const std::string& wrong) {
  const auto failure = first_failure(group, wrong);
  if (!failure) return;
  check(wrong.empty(), what, wrong);
  throw RemoteError(str(what, " on rank ", failure->first, failure->second, " (seen on rank ",
                        group.rank(), ", group ", group.name(), "); no rank was changed"),
                    failure->first);
}

}  // namespace cohort::parallel
