// A parent with an index of a text, and a thread that waits for words. Each child looks up one word, its payload.
//
//   crates/program/target/words < README.md > seed &
//   echo fork | farfork fork $(cat seed) --to any --payload -
#include <farfork.h>

#include <condition_variable>
#include <iostream>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace {

std::map<std::string, int> index_words(std::istream &text) {
    std::map<std::string, int> index;
    for (std::string word; text >> word;) ++index[word];
    return index;
}

// Looks up words in a thread of its own. Children have this thread too.
class Counter {
  public:
    Counter() : thread_(&Counter::run, this) { thread_.detach(); }

    int look_up(const std::map<std::string, int> &index, std::string word) {
        std::unique_lock lock(mutex_);
        index_ = &index;
        word_ = std::move(word);
        answered_ = false;
        changed_.notify_all();
        changed_.wait(lock, [this] { return answered_; });
        return count_;
    }

  private:
    void run() {
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this] { return index_ && !answered_; });
            auto found = index_->find(word_);
            count_ = found == index_->end() ? 0 : found->second;
            answered_ = true;
            changed_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    const std::map<std::string, int> *index_ = nullptr;
    std::string word_;
    int count_ = 0;
    bool answered_ = true;
    std::thread thread_;
};

} // namespace

int main() {
    const auto index = index_words(std::cin);
    static Counter counter;

    farfork_outcome who;
    if (farfork_checkpoint(nullptr, &who) < 0) {
        std::cerr << farfork_error() << '\n';
        return 1;
    }
    if (who.is_child) {
        std::string word(static_cast<const char *>(who.payload), who.payload_bytes);
        word.erase(word.find_last_not_of('\n') + 1);
        const std::string answer = word + ": " + std::to_string(counter.look_up(index, word)) + '\n';
        std::cout << answer << std::flush;
        std::_Exit(farfork_result(&who, answer.data(), answer.size()) < 0);
    }
    std::cout << who.seed << std::endl;
    std::mutex forever;
    std::unique_lock lock(forever);
    std::condition_variable().wait(lock, [] { return false; });
}
