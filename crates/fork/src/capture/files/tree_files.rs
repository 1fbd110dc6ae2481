//! What the processes of a tree have open, read while all of them stand; when they go on, nobody has their files but they.
//!
//! An open file that somebody else holds, be it for a moment, is not closed by close(2): an epoll goes on telling of it under a number
//! that is another file's by then (epoll(7)), its other end hears of no end, its port and its locks are not free, and a program
//! that was written to it cannot be executed.

use farfork_sys::process::FdInfo;

use crate::capture::error::CaptureError;
use crate::capture::files::{self, OpenFd, OpenFileStates, OpenFileTable, PidTranslation, ProcessFiles};
use crate::capture::shared::SharedCopies;
use crate::capture::state::process_root::ProcessRoot;
use crate::capture::state::tree_root::TreeRoot;
use crate::capture::survey::Survey;
use crate::capture::tree::{ProcessTree, TreeProcess, TreeRelations};
use crate::capture::tree_pause::PausedProcess;

/// What they have open, and what was needed to tell.
pub(in crate::capture) struct TreeFiles {
    /// Of each process, the first one first, with what else was read of it.
    pub(in crate::capture) processes: Vec<(ProcessFiles, ProcessRoot)>,
    pub(in crate::capture) table: OpenFileTable,
    pub(in crate::capture) shared_copies: SharedCopies,
    pub(in crate::capture) relations: TreeRelations,
}

/// What is known of the whole tree.
struct TreeContext<'a> {
    root: TreeRoot,
    tree: &'a ProcessTree,
    shared_copies: &'a SharedCopies,
    relations: &'a TreeRelations,
    /// What has pipes and sockets of all.
    tree_states: &'a OpenFileStates,
}

impl TreeFiles {
    /// Reads it of all processes, which stand.
    pub(in crate::capture) fn read(
        family: &ProcessTree,
        paused_process: &mut [PausedProcess],
    ) -> Result<Self, CaptureError> {
        let first = &family.processes[0].prepared.survey;
        let refused = |refusals| CaptureError::refused(first.pid, refusals);
        let root = TreeRoot::find(first.pid)?;
        let mut tree_relations = TreeRelations::from_tree(family).map_err(refused)?;
        let mut copies = paused_process[0].take_shared_copies()?;
        let mut contents = vec![paused_process[0].take_file_states()?];
        for one in &mut paused_process[1..] {
            copies.merge(one.take_shared_copies()?);
            contents.push(one.take_file_states()?);
        }
        let held = contents.iter().zip(family.processes.iter().map(TreeProcess::pid));
        let held = held.flat_map(|(contents, pid)| contents.terminals(pid));
        files::foreground_groups(held.clone())
            .for_each(|(session, group)| tree_relations.add_foreground_leader(session, group));
        let terminals = files::describe_terminals(held, &tree_relations.session_members, root).map_err(refused)?;

        let mut all = OpenFileTable::with_terminals(terminals);
        let tables: Vec<_> = contents.iter_mut().map(OpenFileStates::take_fds).collect();
        let mut pool = std::mem::take(&mut contents[0]);
        contents[1..].iter_mut().for_each(|contents| pool.merge(contents));
        let known =
            TreeContext { root, tree: family, shared_copies: &copies, relations: &tree_relations, tree_states: &pool };
        let mut own = Vec::with_capacity(paused_process.len());
        for (index, (one, table)) in paused_process.iter_mut().zip(tables).enumerate() {
            let contents = if index == 0 { &pool } else { &contents[index] };
            let (survey, process_root) = (&family.processes[index].prepared.survey, one.take_root()?);
            if let Some(refusal) = root.refusal(survey.pid, &process_root.root) {
                return Err(refused(vec![refusal]));
            }
            let files = known.build_process_files(survey, (contents, table), &mut all)?;
            own.push((files, process_root));
        }
        let threads =
            PidTranslation { pid: first.pid, profiles: &first.profiles, inner_ids: &tree_relations.inner_ids };
        all.add_inflight((first.pid, root), &pool, &copies, threads)?;
        Ok(Self { processes: own, table: all, shared_copies: copies, relations: tree_relations })
    }
}

impl TreeContext<'_> {
    /// Those of one process, with its table of descriptors; its own `contents` are those of all, where it is the first.
    fn build_process_files(
        &self,
        survey: &Survey,
        (contents, (mut fds, infos)): (&OpenFileStates, (Vec<OpenFd>, Vec<FdInfo>)),
        all: &mut OpenFileTable,
    ) -> Result<ProcessFiles, CaptureError> {
        let pid = survey.pid;
        if all.streams().is_none() {
            let streams = self.tree.streams.refresh(&fds);
            all.set_streams(
                streams.ok_or_else(|| CaptureError::Unstable { pid, what: "a standard stream".to_owned() })?,
            );
        }
        if let Some(streams) = all.streams() {
            streams.mark_standard(pid, &mut fds);
        }
        let refusals = files::refuse_open_files((pid, self.root), &fds)?;
        if !refusals.is_empty() {
            return Err(CaptureError::refused(pid, refusals));
        }
        let threads = PidTranslation { pid, profiles: &survey.profiles, inner_ids: &self.relations.inner_ids };
        ProcessFiles::build(
            pid,
            self.root,
            (&fds, &infos),
            (contents, self.tree_states),
            self.shared_copies,
            threads,
            all,
        )
    }
}
