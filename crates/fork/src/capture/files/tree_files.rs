//! The open files of all processes of a tree, read in the pause. No duplicate of a file is left when the pause ends.
//!
//! A duplicate in another process, even a brief one, keeps close(2) from closing the open file. Then epoll still reports the
//! file under its old number, which may be another file's (epoll(7)). A peer sees no end of file, ports and locks stay
//! taken, and a program that was just written cannot be executed (ETXTBSY).

use super::builder::FileTableBuilder;
use super::states::ProcessFdTable;
use crate::capture::error::CaptureError;
use crate::capture::files::{self, OpenFileStates, OpenFileTable, PidTranslation, ProcessFiles};
use crate::capture::shared::SharedCopies;
use crate::capture::state::process_root::ProcessRoot;
use crate::capture::state::tree_root::TreeRoot;
use crate::capture::survey::Survey;
use crate::capture::tree::{ProcessTree, TreeProcess, TreeRelations};
use crate::capture::tree_pause::PausedProcess;

/// The open files of a tree, with the state that they depend on.
pub(in crate::capture) struct TreeFiles {
    /// State of each process, the first process first.
    pub(in crate::capture) processes: Vec<ProcessFileState>,
    /// The open files of all processes.
    pub(in crate::capture) table: OpenFileTable,
    pub(in crate::capture) shared_copies: SharedCopies,
    pub(in crate::capture) relations: TreeRelations,
}

/// The files and the root directory of one process.
pub(in crate::capture) struct ProcessFileState {
    pub(in crate::capture) files: ProcessFiles,
    pub(in crate::capture) root: ProcessRoot,
}

/// State of the whole tree.
struct TreeContext<'a> {
    root: TreeRoot,
    tree: &'a ProcessTree,
    shared_copies: &'a SharedCopies,
    relations: &'a TreeRelations,
    /// State of the pipes and sockets of all processes.
    tree_states: &'a OpenFileStates,
}

impl TreeFiles {
    /// Reads the files of all processes, which are stopped.
    pub(in crate::capture) fn read(
        tree: &ProcessTree,
        paused_processes: &mut [PausedProcess],
    ) -> Result<Self, CaptureError> {
        let first = &tree.processes[0].prepared.survey;
        let refused = |refusals| CaptureError::refused(first.pid, refusals);
        let root = TreeRoot::find(first.pid)?;
        let mut tree_relations = TreeRelations::from_tree(tree).map_err(refused)?;
        let mut copies = paused_processes[0].take_shared_copies()?;
        let mut contents = vec![paused_processes[0].take_file_states()?];
        for one in &mut paused_processes[1..] {
            copies.merge(one.take_shared_copies()?);
            contents.push(one.take_file_states()?);
        }
        let terminal_ends = contents.iter().zip(tree.processes.iter().map(TreeProcess::pid));
        let terminal_ends = terminal_ends.flat_map(|(contents, pid)| contents.terminals(pid));
        files::foreground_groups(terminal_ends.clone())
            .for_each(|(session, group)| tree_relations.add_foreground_leader(session, group));
        let terminals =
            files::describe_terminals(terminal_ends, &tree_relations.session_members, root).map_err(refused)?;

        let mut all = OpenFileTable::with_terminals(terminals);
        let tables: Vec<_> = contents.iter_mut().map(OpenFileStates::take_fds).collect();
        let mut tree_states = std::mem::take(&mut contents[0]);
        contents[1..].iter_mut().for_each(|contents| tree_states.merge(contents));
        for ((table, process), paused) in tables.iter().zip(&tree.processes).zip(&*paused_processes) {
            // The survey also has threads that ended before the stop.
            let profiles = &process.prepared.survey.profiles;
            let threads = paused.tids().filter_map(|tid| profiles.get(&tid)).map(|profile| &profile.status);
            tree_states.add_socket_holder(table, threads);
        }
        let known =
            TreeContext { root, tree, shared_copies: &copies, relations: &tree_relations, tree_states: &tree_states };
        let mut own = Vec::with_capacity(paused_processes.len());
        for (index, (one, table)) in paused_processes.iter_mut().zip(tables).enumerate() {
            let contents = if index == 0 { &tree_states } else { &contents[index] };
            let (survey, process_root) = (&tree.processes[index].prepared.survey, one.take_root()?);
            if let Some(refusal) = root.refusal(survey.pid, &process_root.root) {
                return Err(refused(vec![refusal]));
            }
            let files = known.build_process_files(survey, contents, table, &mut all)?;
            own.push(ProcessFileState { files, root: process_root });
        }
        let threads =
            PidTranslation { pid: first.pid, profiles: &first.profiles, inner_ids: &tree_relations.inner_ids };
        all.add_inflight(root, &tree_states, &copies, threads)?;
        all.add_closed_ends(&tree_states);
        let pids = tree.processes.iter().map(TreeProcess::pid);
        all.resolve_epoll_targets(&pids.zip(own.iter().map(|one| &one.files.descriptors[..])).collect())?;
        Ok(Self { processes: own, table: all, shared_copies: copies, relations: tree_relations })
    }
}

impl TreeContext<'_> {
    /// Builds the files of one process from its descriptors. For the first process, `contents` is the merged state of the
    /// tree.
    fn build_process_files(
        &self,
        survey: &Survey,
        contents: &OpenFileStates,
        fd_table: ProcessFdTable,
        all: &mut OpenFileTable,
    ) -> Result<ProcessFiles, CaptureError> {
        let (pid, ProcessFdTable { mut fds, infos }) = (survey.pid, fd_table);
        if all.streams().is_none() {
            let streams = self.tree.streams.refresh(&fds);
            all.set_streams(
                streams.ok_or_else(|| CaptureError::Unstable { pid, what: "a standard stream".to_owned() })?,
            );
        }
        if let Some(streams) = all.streams() {
            streams.mark_standard(pid, &mut fds);
        }
        let refusals = files::refuse_open_files(pid, self.root, &fds)?;
        if !refusals.is_empty() {
            return Err(CaptureError::refused(pid, refusals));
        }
        let builder = FileTableBuilder {
            fd_pid: pid,
            root: self.root,
            fds: &fds,
            file_states: contents,
            tree_states: self.tree_states,
            shared_copies: self.shared_copies,
            pids: PidTranslation { pid, profiles: &survey.profiles, inner_ids: &self.relations.inner_ids },
            process_files: ProcessFiles::default(),
            table: all,
            refusals: Vec::new(),
            are_inflight: false,
        };
        builder.build_process_files(&infos)
    }
}
