//! All that is done while the processes of a tree stand: each goes its way through the [`pause`], and is let go when the last
//! one has.

use super::attempt::Held;
use super::calls::inject::Injector;
use super::error::CaptureError;
use super::files::Contents;
use super::pause::{self, Paused, Prepared};
use super::shared::SharedCopies;
use super::state::likeness::Likeness;
use super::stop::stopped::{Snapshot, Stopped};
use super::tracer::deadline::Deadline;
use super::tracer::post::{Post, Way};
use super::tracer::turn::Turn;
use super::tree::{Family, Relative};
use super::{CaptureOptions, CaptureTimes};
use crate::phase;

/// A process that stands, and what the pause has yielded.
pub(super) struct Standing {
    stopped: Stopped,
    paused: Paused,
}

/// The same of one that goes on.
pub(super) type Read = (Paused, Snapshot);

impl Standing {
    /// What was read of its files; once.
    pub(super) fn take_contents(&mut self) -> Result<Contents, CaptureError> {
        std::mem::replace(&mut self.paused.contents, Ok(Contents::default()))
    }

    /// What was copied of memory that it shares; once.
    pub(super) fn take_copies(&mut self) -> Result<SharedCopies, CaptureError> {
        std::mem::replace(&mut self.paused.copies, Ok(SharedCopies::default()))
    }

    /// What its template has as it had it; once.
    pub(super) fn take_likeness(&mut self) -> Result<Likeness, CaptureError> {
        let taken = Err(CaptureError::Gone { pid: self.stopped.snapshot.pid });
        std::mem::replace(&mut self.paused.likeness, taken)
    }

    /// Lets it go; in freeze mode it stays.
    pub(super) fn release(mut self) -> (Held, Read) {
        match self.paused.born.clone.take() {
            Some(clone) => (Held::Clone(clone), (self.paused, self.stopped.release())),
            None => {
                let snapshot = self.stopped.snapshot.clone();
                (Held::Parent(self.stopped), (self.paused, snapshot))
            }
        }
    }
}

/// All that is done while all stand.
pub(super) fn stand(
    family: &mut Family,
    tids: &[Vec<i32>],
    options: &CaptureOptions,
    deadline: &Deadline,
    turn: &Turn,
    times: &mut CaptureTimes,
) -> Result<Vec<Standing>, CaptureError> {
    let taken = family.relatives.iter().zip(tids).map(|(one, tids)| Stopped::take(one.pid(), tids));
    let mut stopped: Vec<Stopped> =
        phase!("prepare.registers", taken.collect::<Vec<_>>()).into_iter().collect::<Result<_, _>>()?;
    let post = Post::of(tids, deadline);
    let (mut all, mut failed) = (Vec::with_capacity(tids.len()), None);
    for (paused, own) in pass(family, &mut stopped, options.freeze, &post) {
        times.add_pause(&own);
        match paused {
            Ok(paused) => all.push(paused),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        None => Ok(stopped.into_iter().zip(all).map(|(stopped, paused)| Standing { stopped, paused }).collect()),
        Some(error) => {
            drop(stopped);
            let clones = all.into_iter().flat_map(|one| one.born.clone.into_iter().chain(one.born.outdone));
            clones.for_each(|mut clone| clone.end(Some(turn)));
            Err(error)
        }
    }
}

type Passed = (Result<Paused, CaptureError>, CaptureTimes);

/// Has all processes go their ways through the pause: beside one another. One after the other go those that a pager serves, which
/// knows a clone by an address that may be the same in several; and those of whom some have one memory, in which each clone shall
/// find no pages but its own process's.
fn pass(family: &mut Family, stopped: &mut [Stopped], freeze: bool, post: &Post<'_>) -> Vec<Passed> {
    let is_served = family.relatives.iter().any(|one| one.prepared.search.is_some());
    let have_one_memory = family.relatives.iter().any(Relative::has_parents_memory);
    let ways = family.relatives.iter_mut().zip(stopped);
    if !is_served && !have_one_memory {
        let mut all: Vec<(i32, Way<'_, Passed>)> = Vec::with_capacity(ways.len());
        for (one, stopped) in ways {
            all.push((one.pid(), Box::pin(pass_one(&mut one.prepared, stopped, freeze, post))));
        }
        return post.run(all);
    }
    let (mut passed, mut last_space): (Vec<Passed>, _) = (Vec::with_capacity(ways.len()), None);
    for (one, stopped) in ways {
        if let (Some(search), Some(last)) = (&mut one.prepared.search, last_space) {
            search.skip(last);
        }
        let pid = one.pid();
        let mut done = post.run(vec![(pid, Box::pin(pass_one(&mut one.prepared, stopped, freeze, post)))]);
        let space = |(paused, _): &Passed| paused.as_ref().ok()?.born.template_space.as_ref().ok().copied().flatten();
        last_space = done.first().and_then(space).or(last_space);
        passed.append(&mut done);
        if passed.last().is_some_and(|(paused, _)| paused.is_err()) {
            break;
        }
    }
    passed
}

async fn pass_one(prepared: &mut Prepared, stopped: &mut Stopped, freeze: bool, post: &Post<'_>) -> Passed {
    let mut injector = Injector::on_way(prepared.survey.pid, prepared.survey.syscall_at, post);
    let mut times = CaptureTimes::default();
    let paused = pause::pause(stopped, prepared, &mut injector, freeze, &mut times).await;
    stopped.withhold(&mut injector.withheld);
    (paused, times)
}
