//! The state of each thread: files of `/proc/PID/task/TID`, scheduling, registrations, masks, filters, pending signals. A
//! part of the state is read with ptrace(2), so the caller must have stopped the threads.

use farfork_sys::ptrace::{self, SignalQueue};
use farfork_sys::{fd_query, process};

use super::{ObservationBuilder, ObserveError, bytes_text, process_files};

/// Register sets with lasting state, by name and note type. A child must have the same contents.
const REGISTER_SETS: [(&str, usize); 3] = [("thread areas", 0x200), ("I/O ports", 0x201), ("shadow stack", 0x204)];

/// Registers of a stopped thread that only the kernel or the C library changes, with their index in
/// `struct user_regs_struct`.
const BASE_REGISTERS: [(&str, usize); 6] =
    [("fs_base", 21), ("gs_base", 22), ("ds", 23), ("es", 24), ("fs", 25), ("gs", 26)];

/// Maximum number of seccomp filters that are read from one thread.
const FILTERS_MAX: usize = 1024;

/// Reads the threads of a process.
pub(super) fn read_threads(pid: i32, fields: &mut ObservationBuilder) -> Result<(), ObserveError> {
    let pending = ptrace::read_pending_signals(pid, SignalQueue::Process);
    fields.put_result("pending signals", pending.map(|signals| signals_text(&signals)));
    for tid in process::thread_ids(pid).map_err(ObserveError::read(format!("/proc/{pid}/task")))? {
        let field = format!("thread/{}", fields.names.inner_id_text(tid));
        process_files::read_folder(&format!("/proc/{pid}/task/{tid}"), &format!("{field}/"), fields)?;
        // This file exists in /proc/PID only, but /proc also accepts the id of a thread as PID.
        let slack = std::fs::read_to_string(format!("/proc/{tid}/timerslack_ns"));
        fields.put_result(&format!("{field}/timerslack_ns"), slack.map(|slack| slack.trim().to_owned()));
        put_scheduling(tid, &field, fields);
        put_registrations(tid, &field, fields);
        put_filters(tid, &field, fields);
    }
    Ok(())
}

fn put_scheduling(tid: i32, field: &str, fields: &mut ObservationBuilder) {
    fields.put_result(&format!("{field}/ioprio"), fd_query::io_priority(tid));
    fields.put_result(&format!("{field}/scheduling"), fd_query::scheduling_attributes(tid).map(|raw| bytes_text(&raw)));
}

fn put_registrations(tid: i32, field: &str, fields: &mut ObservationBuilder) {
    let robust = process::read_robust_list(tid).map(|(head, bytes)| format!("{head:x} {bytes}"));
    fields.put_result(&format!("{field}/robust list"), robust);
    let rseq = ptrace::read_rseq(tid).map(|rseq| {
        rseq.map_or_else(|| "none".to_owned(), |rseq| format!("{:x} {} {:x}", rseq.address, rseq.bytes, rseq.signature))
    });
    fields.put_result(&format!("{field}/rseq"), rseq);
    fields.put_result(
        &format!("{field}/user dispatch"),
        ptrace::read_user_dispatch(tid).map(|words| format!("{words:x?}")),
    );
    fields
        .put_result(&format!("{field}/signal mask"), ptrace::read_signal_mask(tid).map(|mask| format!("{mask:016x}")));
    let pending = ptrace::read_pending_signals(tid, SignalQueue::Thread);
    fields.put_result(&format!("{field}/pending signals"), pending.map(|signals| signals_text(&signals)));
    for (name, note) in REGISTER_SETS {
        fields.put_result(&format!("{field}/{name}"), ptrace::read_register_set(tid, note).map(|set| bytes_text(&set)));
    }
    if let Ok(Some(registers)) = ptrace::read_registers(tid) {
        let words = registers.to_words();
        BASE_REGISTERS
            .iter()
            .for_each(|(name, at)| fields.put(&format!("{field}/register {name}"), format!("{:x}", words[*at])));
    }
}

/// Records each filter's flags and instructions, the oldest first.
fn put_filters(tid: i32, field: &str, fields: &mut ObservationBuilder) {
    for index in 0..FILTERS_MAX {
        let field = format!("{field}/filter {index}");
        match ptrace::read_seccomp_filter(tid, index) {
            Ok(Some((flags, instructions))) => fields.put(&field, format!("{flags} {}", bytes_text(&instructions))),
            Ok(None) => break,
            Err(error) => {
                fields.put(&field, super::error_name(&error));
                break;
            }
        }
    }
}

/// Formats the number, code and value of each signal. The sender is left out, because the sender's id belongs to this
/// machine.
fn signals_text(signals: &[[u8; ptrace::SIGINFO_BYTES]]) -> String {
    let text = |info: &[u8; ptrace::SIGINFO_BYTES]| {
        let word = |at: usize| bytes_text(&info[at..at + 4]);
        format!("{} code {} value {}", word(0), word(8), bytes_text(&info[24..32]))
    };
    signals.iter().map(text).collect::<Vec<_>>().join("; ")
}
