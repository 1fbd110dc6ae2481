//! The seccomp(2) filters of a plan, in the part of the region that stays mapped. Each process installs the confinement
//! filter before any process of the tree runs, and the other filters as the last step before a thread enters its frame
//! (`restorer/threads.c`). Filters that all threads have are installed for all at once (SECCOMP_FILTER_FLAG_TSYNC). The
//! threads then share these filters, as in the parent, and can get further common filters.

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{SeccompFilter, Thread};

use super::confinement::encode_filter;
use crate::bpf_interpreter::PlannedSyscall;

const INSTRUCTION_BYTES: u64 = 8;

/// SECCOMP_SET_MODE_FILTER.
const SECCOMP_SET_MODE_FILTER: u64 = 1;

/// SECCOMP_FILTER_FLAG_TSYNC.
const SECCOMP_FILTER_FLAG_TSYNC: u64 = 1;

/// The contents of the table, and the addresses of its lists.
pub(super) struct SeccompFilterTable {
    pub(super) bytes: Vec<u8>,
    /// Address of each thread's own list; 0 for none.
    pub(super) thread_lists: Vec<u64>,
    /// Address of the list that all threads share; 0 for none.
    pub(super) common_list: u64,
    /// Address of the list that the leader installs for all threads before any process of the tree runs; 0 for none.
    pub(super) confinement_list: u64,
}

/// Size of the table in bytes.
pub(super) fn table_bytes(descriptor: &Descriptor) -> u64 {
    build_table(descriptor, 0).bytes.len() as u64
}

//  ┌─ instructions of each filter ─┬─ sock_fprog of each ─┬─ confinement ─┬─ common ───────────────┬─ per thread ─────┐
//  │ 8 bytes each                  │ length, address      │ a list        │ plan_common_filters,   │ a list for each  │
//  │                               │                      │               │ which ends with a list │ with own filters │
//  └───────────────────────────────┴──────────────────────┴───────────────┴────────────────────────┴──────────────────┘
//  a list: operation, flags, address; …; 0, address of a plan_user_dispatch, which precedes the list, or 0; 0
/// Builds the table for the address `base`.
pub(super) fn build_table(descriptor: &Descriptor, base: u64) -> SeccompFilterTable {
    let filters = &descriptor.process.seccomp_filters;
    let mut bytes: Vec<u8> = filters.iter().flat_map(|filter| &filter.instructions).copied().collect();
    let mut programs = Vec::with_capacity(filters.len());
    let mut instructions = base;
    for filter in filters {
        programs.push(base + bytes.len() as u64);
        let length = filter.instructions.len() as u64;
        append_words(&mut bytes, &[length / INSTRUCTION_BYTES, instructions]);
        instructions += length;
    }
    let entry = |index: &u32, flags: u64| {
        [SECCOMP_SET_MODE_FILTER, u64::from(filters[*index as usize].flags) | flags, programs[*index as usize]]
    };
    let append_list = |bytes: &mut Vec<u8>, header: &[u64], list: &[u32], flags: u64, dispatch: u64| {
        if list.is_empty() && dispatch == 0 {
            return 0;
        }
        let address = base + bytes.len() as u64;
        append_words(bytes, header);
        list.iter().for_each(|index| append_words(bytes, &entry(index, flags)));
        append_words(bytes, &[0, dispatch, 0]);
        address
    };
    let (confinement, common) = split_shared_filters(descriptor);
    let confinement_list = append_list(&mut bytes, &[], confinement, SECCOMP_FILTER_FLAG_TSYNC, 0);
    let common_header = encode_common_header(descriptor, common, base + bytes.len() as u64);
    let common_list = append_list(&mut bytes, &common_header, common, SECCOMP_FILTER_FLAG_TSYNC, 0);
    let installed_for_all = confinement.len() + common.len();
    let own = |thread: &Thread| {
        let dispatch = append_user_dispatch(descriptor, thread, base, &mut bytes);
        append_list(&mut bytes, &[], &thread.seccomp_filters[installed_for_all..], 0, dispatch)
    };
    let thread_lists = descriptor.threads.iter().map(own).collect();
    SeccompFilterTable { bytes, thread_lists, common_list, confinement_list }
}

/// Splits the shared filters into farfork's confinement filters, and those that the leader installs last for all
/// threads. If there is only one thread, the latter are empty: the thread installs its own list.
///
/// The confinement filter allows each system call that the rest of a restore makes, so it can be installed before one
/// process of a tree waits for another. Filters of the parent may forbid such a call.
fn split_shared_filters(descriptor: &Descriptor) -> (&[u32], &[u32]) {
    let shared = find_shared_filters(descriptor);
    let is_confinement = |filter: &SeccompFilter| filter.flags == 0 && filter.instructions == encode_filter();
    let filters = &descriptor.process.seccomp_filters;
    let count = shared.iter().take_while(|index| is_confinement(&filters[**index as usize])).count();
    let (confinement, others) = shared.split_at(count);
    (confinement, if descriptor.threads.len() > 1 { others } else { &[] })
}

/// Returns the filters with which the lists of all threads begin. The kernel reports which filters a thread has, but
/// not which of them it shares with other threads. So this common prefix counts as shared, and the rest as each
/// thread's own.
///
/// SECCOMP_FILTER_FLAG_TSYNC also copies the calling thread's no_new_privs to the others. So threads with different
/// values share no filter.
fn find_shared_filters(descriptor: &Descriptor) -> &[u32] {
    let Some((leader, others)) = descriptor.threads.split_first() else {
        return &[];
    };
    let is_kept =
        |thread: &Thread| thread.credentials.as_ref().unwrap_or(&descriptor.process.credentials).no_new_privileges;
    if others.iter().any(|thread| is_kept(thread) != is_kept(leader)) {
        return &[];
    }
    let of_leader = &leader.seccomp_filters;
    let in_common =
        |thread: &Thread| of_leader.iter().zip(&thread.seccomp_filters).take_while(|(one, other)| one == other).count();
    &of_leader[..others.iter().map(in_common).min().unwrap_or(of_leader.len())]
}

/// Encodes `struct plan_common_filters` for `address`: the number of waiting threads, and whether they may continue;
/// the futex word, and the total number of threads that wait; whether the filters allow the wake-up.
fn encode_common_header(descriptor: &Descriptor, shared: &[u32], address: u64) -> [u64; 3] {
    const WAKE_FUTEX_OFFSET: u64 = 8;
    const SYS_FUTEX: u32 = 202;
    const FUTEX_WAKE_PRIVATE: u64 = 129;
    let filters = &descriptor.process.seccomp_filters;
    let arguments = [address + WAKE_FUTEX_OFFSET, FUTEX_WAKE_PRIVATE, i32::MAX as u64, 0, 0, 0];
    let wake = PlannedSyscall { number: SYS_FUTEX, instruction_pointer: 0, arguments };
    let allows = |filter: &SeccompFilter| wake.is_allowed_by(&filter.instructions);
    let can_wake = shared.iter().all(|index| allows(&filters[*index as usize]));
    let others = descriptor.threads.len() as u64 - 1;
    [0, others << 32, u64::from(can_wake)]
}

/// Appends `struct plan_user_dispatch` of a thread, and returns its address; 0 if the thread has none.
fn append_user_dispatch(descriptor: &Descriptor, thread: &Thread, base: u64, bytes: &mut Vec<u8>) -> u64 {
    let Some(dispatch) = descriptor.thread_attributes(thread.tid).and_then(|attributes| attributes.user_dispatch)
    else {
        return 0;
    };
    let address = base + bytes.len() as u64;
    append_words(bytes, &[dispatch.mode, dispatch.offset, dispatch.bytes, dispatch.selector]);
    address
}

fn append_words(bytes: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
}
