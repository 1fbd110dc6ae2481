//! Reads what the kernel shows only to the process itself: signal dispositions, timers, prctl(2) values and similar state.
//! Calls are injected into its threads while they are stopped.

use std::fs;

use farfork_fork::capture::QueryArgument::{Number, ResultBuffer as Place};
use farfork_fork::capture::{QueryCall, QueryResult, QueryThreads, StoppedProcess};

use farfork_sys::process_memory::read_process;
use farfork_sys::ptrace;

use super::{ObservationBuilder, ObserveError, bytes_text};

const RT_SIGACTION: u64 = 13;
const BRK: u64 = 12;
const GETITIMER: u64 = 36;
const SIGALTSTACK: u64 = 131;
const PRCTL: u64 = 157;
const ARCH_PRCTL: u64 = 158;
const TIMER_GETTIME: u64 = 224;
const TIMER_GETOVERRUN: u64 = 225;
const GET_MEMPOLICY: u64 = 239;
const MEMBARRIER: u64 = 324;
const MMAP: u64 = 9;
const MUNMAP: u64 = 11;
const MODIFY_LDT: u64 = 154;

const SIGNALS: u64 = 64;
const SIGNAL_SET_BYTES: u64 = 8;
const INTERVAL_TIMERS: [&str; 3] = ["ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF"];

/// A query that changes nothing.
struct CallValue {
    name: &'static str,
    question: QueryCall,
    /// Number of bytes that the kernel writes; 0 if the return value is the result.
    bytes: usize,
}

const fn returned_value(name: &'static str, number: u64, first: u64, second: u64) -> CallValue {
    let none = Number(0);
    CallValue {
        name,
        question: QueryCall { number, arguments: [Number(first), Number(second), none, none, none, none] },
        bytes: 0,
    }
}

const fn written_value(name: &'static str, number: u64, option: u64, bytes: usize) -> CallValue {
    let none = Number(0);
    CallValue {
        name,
        question: QueryCall { number, arguments: [Number(option), Place, none, none, none, none] },
        bytes,
    }
}

/// Queries about a thread or its process, by prctl(2) and other calls.
const CALL_VALUES: [CallValue; 29] = [
    written_value("PR_GET_PDEATHSIG", PRCTL, 2, 4),
    returned_value("PR_GET_DUMPABLE", PRCTL, 3, 0),
    returned_value("PR_GET_KEEPCAPS", PRCTL, 7, 0),
    returned_value("PR_GET_TIMING", PRCTL, 13, 0),
    written_value("PR_GET_NAME", PRCTL, 16, 16),
    written_value("PR_GET_TSC", PRCTL, 25, 4),
    returned_value("PR_GET_SECUREBITS", PRCTL, 27, 0),
    returned_value("PR_GET_TIMERSLACK", PRCTL, 30, 0),
    returned_value("PR_MCE_KILL_GET", PRCTL, 34, 0),
    written_value("PR_GET_CHILD_SUBREAPER", PRCTL, 37, 4),
    returned_value("PR_GET_NO_NEW_PRIVS", PRCTL, 39, 0),
    written_value("PR_GET_TID_ADDRESS", PRCTL, 40, 8),
    returned_value("PR_GET_THP_DISABLE", PRCTL, 42, 0),
    returned_value("PR_GET_SPECULATION_CTRL PR_SPEC_STORE_BYPASS", PRCTL, 52, 0),
    returned_value("PR_GET_SPECULATION_CTRL PR_SPEC_INDIRECT_BRANCH", PRCTL, 52, 1),
    returned_value("PR_GET_SPECULATION_CTRL PR_SPEC_L1D_FLUSH", PRCTL, 52, 2),
    returned_value("PR_GET_IO_FLUSHER", PRCTL, 58, 0),
    returned_value("PR_GET_MDWE", PRCTL, 66, 0),
    returned_value("PR_GET_MEMORY_MERGE", PRCTL, 68, 0),
    returned_value("PR_TIMER_CREATE_RESTORE_IDS_GET", PRCTL, 77, 2),
    returned_value("PR_FUTEX_HASH_GET_SLOTS", PRCTL, 78, 2),
    returned_value("ARCH_GET_CPUID", ARCH_PRCTL, 0x1011, 0),
    written_value("ARCH_GET_XCOMP_PERM", ARCH_PRCTL, 0x1022, 8),
    written_value("ARCH_SHSTK_STATUS", ARCH_PRCTL, 0x5005, 8),
    written_value("sigaltstack", SIGALTSTACK, 0, 24),
    returned_value("membarrier MEMBARRIER_CMD_GET_REGISTRATIONS", MEMBARRIER, 1 << 9, 0),
    returned_value("brk", BRK, 0, 0),
    // The first argument is the address of the result, not an option.
    CallValue {
        name: "get_mempolicy",
        question: QueryCall {
            number: GET_MEMPOLICY,
            arguments: [Place, Number(0), Number(0), Number(0), Number(0), Number(0)],
        },
        bytes: 4,
    },
    returned_value("PR_GET_FP_MODE", PRCTL, 46, 0),
];

/// Queries in the kernel's header (linux/prctl.h) that the differ omits, each with the reason.
#[cfg(test)]
const UNASKED: [(&str, &str); 10] = [
    ("PR_GET_SECCOMP", "in strict mode, the call would kill the process; /proc/PID/status shows the mode"),
    ("PR_GET_UNALIGN", "not on x86-64"),
    ("PR_GET_FPEMU", "not on x86-64"),
    ("PR_GET_FPEXC", "not on x86-64"),
    ("PR_GET_ENDIAN", "not on x86-64"),
    ("PR_SVE_GET_VL", "not on x86-64"),
    ("PR_SME_GET_VL", "not on x86-64"),
    ("PR_GET_TAGGED_ADDR_CTRL", "not on x86-64"),
    ("PR_PAC_GET_ENABLED_KEYS", "not on x86-64"),
    ("PR_SCHED_CORE_GET", "the cookie is a hash of a kernel address"),
];

/// Makes the queries in a stopped process, and records the results.
pub(super) fn read_by_injected_calls(
    pid: i32,
    standstill: &mut StoppedProcess,
    fields: &mut ObservationBuilder,
) -> Result<(), ObserveError> {
    if let Some(tid) = standstill.threads().find(|tid| has_blocked_calls(pid, *tid)) {
        let tid = fields.names.inner_id_text(tid);
        fields.put("injected calls", format!("none, because Syscall User Dispatch blocks calls of thread {tid}"));
        return Ok(());
    }
    let of_threads: Vec<QueryCall> = CALL_VALUES.iter().map(|value| value.question).collect();
    let tids: Vec<i32> = standstill.threads().collect();
    let answers = standstill.run_queries(QueryThreads::AllThreads, &of_threads)?;
    for (tid, answers) in tids.into_iter().zip(answers) {
        let field = format!("thread/{}/value", fields.names.inner_id_text(tid));
        CALL_VALUES
            .iter()
            .zip(&answers)
            .for_each(|(value, answer)| put_answer(&format!("{field}/{}", value.name), answer, value.bytes, fields));
    }
    put_local_descriptors(pid, standstill, fields)?;
    put_signals_and_timers(pid, standstill, fields)
}

/// Whether Syscall User Dispatch turns system calls of a stopped thread into SIGSYS. An injected call would run the thread's
/// handler.
fn has_blocked_calls(pid: i32, tid: i32) -> bool {
    const ALLOW: u8 = 0;
    let mut value = [ALLOW];
    match ptrace::read_user_dispatch(tid) {
        Ok([mode, selector, ..]) if mode != 0 => {
            selector == 0 || read_process(pid, selector, &mut value).is_err() || value != [ALLOW]
        }
        // Off, or not reported by the kernel.
        _ => false,
    }
}

/// Records the local descriptor table. A table that does not fit into a result buffer is read into memory that is mapped for
/// it.
fn put_local_descriptors(
    pid: i32,
    standstill: &mut StoppedProcess,
    fields: &mut ObservationBuilder,
) -> Result<(), ObserveError> {
    const TABLE_BYTES_MAX: u64 = 8192 * 8;
    const READ_WRITE: u64 = 3;
    const PRIVATE_ANONYMOUS: u64 = 0x22;
    let mut run = |number, arguments| {
        let question = QueryCall { number, arguments };
        let results = standstill.run_queries(QueryThreads::MainThread, &[question]);
        results.map(|mut results| results.swap_remove(0).swap_remove(0).result)
    };
    let [zero, size] = [Number(0), Number(TABLE_BYTES_MAX)];
    if run(MODIFY_LDT, [zero, Place, Number(8), zero, zero, zero])? != 8 {
        fields.put("local descriptors", "none");
        return Ok(());
    }
    let mapping = [zero, size, Number(READ_WRITE), Number(PRIVATE_ANONYMOUS), Number(u64::MAX), zero];
    let address = run(MMAP, mapping)?.cast_unsigned();
    run(MODIFY_LDT, [zero, Number(address), size, zero, zero, zero])?;
    let mut table = vec![0; TABLE_BYTES_MAX as usize];
    let read = read_process(pid, address, &mut table);
    run(MUNMAP, [Number(address), size, zero, zero, zero, zero])?;
    let used = table.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    fields.put_result("local descriptors", read.map(|_| bytes_text(&table[..used.next_multiple_of(8)])));
    Ok(())
}

fn put_signals_and_timers(
    pid: i32,
    standstill: &mut StoppedProcess,
    fields: &mut ObservationBuilder,
) -> Result<(), ObserveError> {
    let none = Number(0);
    let action = |signal| QueryCall {
        number: RT_SIGACTION,
        arguments: [Number(signal), none, Place, Number(SIGNAL_SET_BYTES), none, none],
    };
    let timer = |number, id| QueryCall { number, arguments: [Number(id), Place, none, none, none, none] };
    let posix = posix_timer_ids(pid);
    let mut questions: Vec<QueryCall> = (1..=SIGNALS).map(action).collect();
    questions.extend((0..INTERVAL_TIMERS.len() as u64).map(|which| timer(GETITIMER, which)));
    questions.extend(posix.iter().flat_map(|id| [timer(TIMER_GETTIME, *id), timer(TIMER_GETOVERRUN, *id)]));
    let mut answers = standstill.run_queries(QueryThreads::MainThread, &questions)?.swap_remove(0).into_iter();
    for (signal, answer) in (1..=SIGNALS).zip(answers.by_ref()) {
        // Handler, flags, restorer, mask: 32 bytes.
        put_answer(&format!("signal action/{signal}"), &answer, 32, fields);
    }
    for (name, answer) in INTERVAL_TIMERS.iter().zip(answers.by_ref()) {
        put_time(&format!("interval timer/{name}"), &answer, 1_000_000, fields);
    }
    for id in posix {
        let (Some(time), Some(overrun)) = (answers.next(), answers.next()) else { break };
        put_time(&format!("posix timer/{id}"), &time, 1_000_000_000, fields);
        put_answer(&format!("posix timer/{id}/overrun"), &overrun, 0, fields);
    }
    Ok(())
}

/// The ids of the process's timers (timer_create(2)).
fn posix_timer_ids(pid: i32) -> Vec<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/timers")).unwrap_or_default();
    text.lines().filter_map(|line| line.strip_prefix("ID: ")?.trim().parse().ok()).collect()
}

fn put_answer(field: &str, answer: &QueryResult, bytes: usize, fields: &mut ObservationBuilder) {
    let value = match (answer.result, bytes) {
        (error @ -4095..0, _) => format!("errno {}", -error),
        (value, 0) => value.to_string(),
        (_, bytes) => bytes_text(&answer.bytes[..bytes]),
    };
    fields.put(field, value);
}

/// Records an interval and the remaining time. Both are seconds, then fractions of a second (`parts_per_second`).
fn put_time(field: &str, answer: &QueryResult, parts_per_second: u64, fields: &mut ObservationBuilder) {
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| answer.bytes[at * 8 + byte]));
    let milliseconds = |at: usize| word(at) * 1000 + (word(at + 1) * 1000).div_ceil(parts_per_second);
    fields.put(&format!("{field}/interval"), milliseconds(0));
    fields.put(&format!("{field}/left"), milliseconds(2));
    fields.put(&format!("{field}/is armed"), milliseconds(2) != 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_getter_of_the_header_is_called_or_listed_as_skipped() {
        let header = fs::read_to_string("/usr/include/linux/prctl.h").expect("linux-libc-dev");
        let names = header.lines().filter_map(|line| line.trim_start_matches('#').trim().strip_prefix("define "));
        let names = names.filter_map(|line| line.split_whitespace().next());
        let is_known = |name: &str| {
            CALL_VALUES.iter().any(|value| value.name.split(' ').next() == Some(name))
                || UNASKED.iter().any(|(unasked, _)| *unasked == name)
        };
        let missing: Vec<&str> =
            names.filter(|name| (name.contains("_GET_") || name.ends_with("_GET")) && !is_known(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
