//! Judges whether a child ended in an allowed way. Pure.

use farfork_api::v1::exit::How;

use crate::workload::memory_walk::{self, WalkReport};

/// Signal numbers.
const SIGBUS: u32 = 7;
const SIGKILL: u32 = 9;

/// Exit status of a child that cannot continue with its memory limit.
const FAILURE: u32 = 1;

/// How a child ended, and its output.
#[derive(Debug, Clone)]
pub(super) struct ObservedEnd {
    /// `None` if it did not end.
    pub(super) exit: Option<How>,
    pub(super) output: String,
    /// Why pages were lost, as reported by the child's node; empty if none were lost.
    pub(super) memory_lost: String,
    /// The limit that the child's node reports as exceeded; empty for none.
    pub(super) limit: String,
}

/// The ends of a child that are allowed in addition to a successful exit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AllowedEnds {
    /// An end by SIGKILL, because the child was killed.
    pub(super) killed: bool,
    /// An end by SIGBUS with a reported reason, because a seed from which the child has pages may be lost.
    pub(super) lost: bool,
    /// A reported end by a limit, because the child has a memory limit.
    pub(super) limited: bool,
}

/// The verdict on a child's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EndVerdict {
    /// All of its pages were correct, in this many verifications.
    Correct(u64),
    /// It was killed, which was allowed.
    Killed,
    /// It lost pages, which was allowed, and its node has reported the reason.
    Lost,
    /// It exceeded its limit, which was allowed, and its node has reported it.
    Limited,
    /// It ended in a way that was not allowed.
    Unexpected(String),
}

/// Judges an end.
pub(super) fn judge_end(end: &ObservedEnd, allowed: AllowedEnds) -> EndVerdict {
    match (memory_walk::parse_output(&end.output), &end.exit) {
        (WalkReport::Wrong(text), _) => EndVerdict::Unexpected(format!("it printed `{text}`")),
        (WalkReport::Correct(looks), Some(How::Code(0))) => EndVerdict::Correct(looks),
        (_, Some(How::Signal(SIGKILL | SIGBUS) | How::Code(FAILURE) | How::Lost(_)))
            if allowed.limited && !end.limit.is_empty() =>
        {
            EndVerdict::Limited
        }
        (_, Some(How::Signal(SIGKILL))) if allowed.killed => EndVerdict::Killed,
        (_, Some(How::Signal(SIGBUS))) if allowed.lost && !end.memory_lost.is_empty() => EndVerdict::Lost,
        (_, Some(How::Signal(SIGBUS))) if allowed.lost => {
            EndVerdict::Unexpected("it lost pages, but its node reports no reason".to_owned())
        }
        (_, None) => EndVerdict::Unexpected("it does not end".to_owned()),
        (_, Some(how)) => {
            let why = if end.memory_lost.is_empty() { "no memory lost" } else { &end.memory_lost };
            let limit = if end.limit.is_empty() { "no limit met" } else { &end.limit };
            let output = end.output.trim();
            EndVerdict::Unexpected(format!(
                "it ended by {how:?} ({why}, {limit}, {allowed:?}) after it printed `{output}`"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AllowedEnds, EndVerdict, How, ObservedEnd, SIGBUS, SIGKILL, judge_end};

    fn judged(how: How, said: &str, memory_lost: &str, allowed: AllowedEnds) -> EndVerdict {
        let (said, memory_lost) = (said.to_owned(), memory_lost.to_owned());
        judge_end(&ObservedEnd { exit: Some(how), output: said, memory_lost, limit: String::new() }, allowed)
    }

    #[test]
    fn an_end_counts_as_limited_only_with_a_limit_and_a_report() {
        let end = |how, limit: &str, said: &str| {
            let (limit, said) = (limit.to_owned(), said.to_owned());
            ObservedEnd { exit: Some(how), output: said, memory_lost: String::new(), limit }
        };
        let limited = AllowedEnds { limited: true, ..AllowedEnds::default() };
        for how in [How::Signal(SIGKILL), How::Signal(SIGBUS), How::Code(1), How::Lost("its container".to_owned())] {
            assert_eq!(judge_end(&end(how.clone(), "it needed more", ""), limited), EndVerdict::Limited);
            assert!(matches!(judge_end(&end(how.clone(), "", ""), limited), EndVerdict::Unexpected(_)));
            assert!(matches!(
                judge_end(&end(how.clone(), "it needed more", ""), AllowedEnds::default()),
                EndVerdict::Unexpected(_)
            ));
            assert!(matches!(
                judge_end(&end(how, "it needed more", "wrong page 3"), limited),
                EndVerdict::Unexpected(_)
            ));
        }
    }

    #[test]
    fn an_end_is_correct_only_if_it_was_allowed() {
        let nothing = AllowedEnds::default();
        let (killed, lost) = (AllowedEnds { killed: true, ..nothing }, AllowedEnds { lost: true, ..nothing });
        let is_fault = |verdict| matches!(verdict, EndVerdict::Unexpected(_));
        assert_eq!(judged(How::Code(0), "sound 5\n", "", nothing), EndVerdict::Correct(5));
        assert_eq!(judged(How::Signal(SIGKILL), "", "", killed), EndVerdict::Killed);
        assert_eq!(judged(How::Signal(SIGBUS), "", "seed x was dropped", lost), EndVerdict::Lost);
        assert!(is_fault(judged(How::Signal(SIGKILL), "", "", lost)));
        assert!(is_fault(judged(How::Signal(SIGBUS), "", "gone", killed)));
        assert!(is_fault(judged(How::Signal(SIGBUS), "", "", lost)), "without a reason");
        assert!(is_fault(judged(
            How::Code(1),
            "wrong page 5",
            "gone",
            AllowedEnds { killed: true, lost: true, limited: false }
        )));
        assert!(is_fault(judged(How::Code(0), "", "", nothing)), "it has verified no pages");
        assert!(is_fault(judge_end(
            &ObservedEnd { exit: None, output: String::new(), memory_lost: String::new(), limit: String::new() },
            lost
        )));
    }
}
