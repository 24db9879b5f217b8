#include "parallel/what_of.h"

namespace cohort::parallel {

std::string what_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    return *caught.what() != '\0' ? caught.what() : "an exception without a text";
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace cohort::parallel
