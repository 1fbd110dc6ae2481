//! What the processes of a tree have open, read while all of them stand; when they go on, nobody has their files but they.
//!
//! An open file that somebody else holds, be it for a moment, is not closed by close(2): an epoll goes on telling of it under a number
//! that is another file's by then (epoll(7)), its other end hears of no end, its port and its locks are not free, and a program
//! that was written to it cannot be executed.

use farfork_sys::process::FdInfo;

use crate::capture::error::CaptureError;
use crate::capture::files::{self, Contents, Files, OpenFd, OpenFiles, Threads};
use crate::capture::shared::SharedCopies;
use crate::capture::stand::Standing;
use crate::capture::state::likeness::Likeness;
use crate::capture::state::root::Root;
use crate::capture::survey::Survey;
use crate::capture::tree::{Family, Kin, Relative};

/// What they have open, and what was needed to tell.
pub(in crate::capture) struct Open {
    /// Of each process, the first one first, with what else was read of it.
    pub(in crate::capture) own: Vec<(Files, Likeness)>,
    pub(in crate::capture) all: OpenFiles,
    pub(in crate::capture) copies: SharedCopies,
    pub(in crate::capture) kin: Kin,
}

/// What is known of the whole tree.
struct Known<'a> {
    root: Root,
    family: &'a Family,
    copies: &'a SharedCopies,
    kin: &'a Kin,
    /// What has pipes and sockets of all.
    pool: &'a Contents,
}

impl Open {
    /// Reads it of all processes, which stand.
    pub(in crate::capture) fn read(family: &Family, standing: &mut [Standing]) -> Result<Self, CaptureError> {
        let first = &family.relatives[0].prepared.survey;
        let refused = |refusals| CaptureError::refused(first.pid, refusals);
        let root = Root::of(first.pid)?;
        let mut kin = Kin::of(family).map_err(refused)?;
        let mut copies = standing[0].take_copies()?;
        let mut contents = vec![standing[0].take_contents()?];
        for one in &mut standing[1..] {
            copies.absorb(one.take_copies()?);
            contents.push(one.take_contents()?);
        }
        let held = contents.iter().zip(family.relatives.iter().map(Relative::pid));
        let held = held.flat_map(|(contents, pid)| contents.terminals(pid));
        files::foregrounds(held.clone()).for_each(|(session, group)| kin.revive(session, group));
        let terminals = files::describe_terminals(held, &kin.seats, root).map_err(refused)?;

        let mut all = OpenFiles::of(terminals);
        let tables: Vec<_> = contents.iter_mut().map(Contents::take_table).collect();
        let mut pool = std::mem::take(&mut contents[0]);
        contents[1..].iter_mut().for_each(|contents| pool.absorb(contents));
        let known = Known { root, family, copies: &copies, kin: &kin, pool: &pool };
        let mut own = Vec::with_capacity(standing.len());
        for (index, (one, table)) in standing.iter_mut().zip(tables).enumerate() {
            let contents = if index == 0 { &pool } else { &contents[index] };
            let (survey, likeness) = (&family.relatives[index].prepared.survey, one.take_likeness()?);
            if let Some(refusal) = root.refusal(survey.pid, &likeness.root) {
                return Err(refused(vec![refusal]));
            }
            let files = known.files_of(survey, (contents, table), &mut all)?;
            own.push((files, likeness));
        }
        let threads = Threads { pid: first.pid, profiles: &first.profiles, ids: &kin.ids };
        all.deliver((first.pid, root), &pool, &copies, threads)?;
        Ok(Self { own, all, copies, kin })
    }
}

impl Known<'_> {
    /// Those of one process, with its table of descriptors; its own `contents` are those of all, where it is the first.
    fn files_of(
        &self,
        survey: &Survey,
        (contents, (mut fds, infos)): (&Contents, (Vec<OpenFd>, Vec<FdInfo>)),
        all: &mut OpenFiles,
    ) -> Result<Files, CaptureError> {
        let pid = survey.pid;
        if all.streams().is_none() {
            let streams = self.family.streams.now(&fds);
            all.begin(streams.ok_or_else(|| CaptureError::Unstable { pid, what: "a standard stream".to_owned() })?);
        }
        if let Some(streams) = all.streams() {
            streams.mark(pid, &mut fds);
        }
        let refusals = files::refusals((pid, self.root), &fds)?;
        if !refusals.is_empty() {
            return Err(CaptureError::refused(pid, refusals));
        }
        let threads = Threads { pid, profiles: &survey.profiles, ids: &self.kin.ids };
        Files::build(pid, self.root, (&fds, &infos), (contents, self.pool), self.copies, threads, all)
    }
}
