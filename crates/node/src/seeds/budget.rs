//! Memory budget of templates. A seed that would exceed the budget is refused at prepare, so that no template is lost
//! later for lack of memory. A template first shares all pages with its parent. Each page that the parent writes then
//! belongs to the template alone, in the end perhaps all. A sealed seed has no template.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use farfork_api::byte_size;
use farfork_api::failure::Failure;
use farfork_sys::process::read_text;
use farfork_wire::SeedId;
use tonic::Code;

use super::{SealProgress, SeedEntry, SeedRegistry};

/// Maximum number of seeds that a refusal names: a longer list would hide the next step.
const SEEDS_NAMED_MAX: usize = 3;

/// Limits of the memory that templates may hold.
#[derive(Debug, Clone, Copy, Default)]
pub struct SeedBudget {
    /// Limit of the sum of all templates; unlimited if `None`.
    pub bytes_max: Option<u64>,
    /// Limit for the templates of one user's processes; unlimited if `None`.
    pub user_bytes_max: Option<u64>,
}

/// The most memory that a template may hold later, and the user it is charged to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct MemoryCharge {
    pub(super) bytes: u64,
    /// The user id of the template's parent.
    pub(super) user: u32,
}

impl MemoryCharge {
    /// Estimates a lower bound of the charge for a process before its capture, from /proc/PID/status (RssAnon and
    /// VmSwap).
    pub(super) fn estimate_min(pid: u32) -> Self {
        let status = read_text(&format!("/proc/{pid}/status")).unwrap_or_default();
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0)
        };
        Self { bytes: (kib("RssAnon:") + kib("VmSwap:")) << 10, user: process_uid(pid) }
    }

    /// Creates the charge for a template of this process.
    pub(super) fn new(pid: u32, bytes: u64) -> Self {
        Self { bytes, user: process_uid(pid) }
    }
}

impl SeedBudget {
    /// Whether any limit is set.
    pub(super) fn is_bounded(&self) -> bool {
        self.bytes_max.is_some() || self.user_bytes_max.is_some()
    }

    /// Checks whether a template of this process fits in addition to the charges in `held`.
    ///
    /// # Errors
    /// The template does not fit. The failure names the seeds that hold the most memory.
    pub(super) fn check_charge(
        &self,
        pid: u32,
        wanted: MemoryCharge,
        held: &[(String, MemoryCharge)],
    ) -> Result<(), Failure> {
        let of_user: Vec<(String, MemoryCharge)> =
            held.iter().filter(|(_, charge)| charge.user == wanted.user).cloned().collect();
        let scope = format!("seeds of user {}", wanted.user);
        let bounds = [(self.bytes_max, "seeds", held), (self.user_bytes_max, &scope, &of_user)];
        for (bytes_max, scope, held) in bounds {
            let Some(bytes_max) = bytes_max else { continue };
            if let Err(cause) = check_fits(wanted.bytes, bytes_max, scope, held) {
                let step = "drop seeds (`farfork drop`), prepare them with `--sealed`, which ends their templates, or give the \
                            node more (`farfork node --seed-memory`)";
                return Err(Failure::new(Code::ResourceExhausted, format!("process {pid}"), cause).with_next_step(step));
            }
        }
        Ok(())
    }
}

impl SeedEntry {
    /// Returns the charge of this seed. It is 0 if an image has the memory, or if the stopped parent is the template.
    pub(super) fn memory_charge(&self) -> MemoryCharge {
        let holds_nothing = matches!(self.seal_progress, Some(SealProgress::Sealed { .. })) || self.view.frozen;
        MemoryCharge { bytes: if holds_nothing { 0 } else { self.memory_charge.bytes }, ..self.memory_charge }
    }
}

impl SeedRegistry {
    /// Returns the sum of all charges, and the limit, in bytes.
    pub(crate) fn charged_bytes(&self) -> (u64, Option<u64>) {
        (self.entries().values().map(|seed| seed.memory_charge().bytes).sum(), self.budget.bytes_max)
    }

    /// Checks the lower bound of a seed's charge before the process is stopped.
    ///
    /// # Errors
    /// Even the lower bound exceeds the budget.
    pub(super) fn check_budget(&self, pid: u32) -> Result<(), Failure> {
        if !self.budget.is_bounded() {
            return Ok(());
        }
        let held = memory_charges(self.entries().iter());
        self.budget.check_charge(pid, MemoryCharge::estimate_min(pid), &held)
    }
}

/// Returns the display name and the charge of each seed.
pub(super) fn memory_charges<'a>(
    listed: impl Iterator<Item = (&'a SeedId, &'a SeedEntry)>,
) -> Vec<(String, MemoryCharge)> {
    let named = |id: &SeedId, name: &str| if name.is_empty() { id.to_string() } else { format!("{id} ({name})") };
    listed.map(|(id, seed)| (named(id, &seed.view.name), seed.memory_charge())).collect()
}

fn process_uid(pid: u32) -> u32 {
    fs::metadata(format!("/proc/{pid}")).map_or(0, |process| process.uid())
}

/// Checks that `wanted` bytes fit into the rest of the budget. The error contains the cause of a refusal.
fn check_fits(wanted: u64, bytes_max: u64, scope: &str, held: &[(String, MemoryCharge)]) -> Result<(), String> {
    let left = bytes_max.saturating_sub(held.iter().map(|(_, charge)| charge.bytes).sum());
    if wanted <= left {
        return Ok(());
    }
    let mut holders: Vec<(&str, u64)> = held.iter().map(|(name, charge)| (name.as_str(), charge.bytes)).collect();
    holders.retain(|(_, bytes)| *bytes > 0);
    holders.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let mut named: Vec<String> = holders
        .iter()
        .take(SEEDS_NAMED_MAX)
        .map(|(name, bytes)| format!("{name} {}", byte_size::format_bytes(*bytes)))
        .collect();
    if holders.len() > SEEDS_NAMED_MAX {
        let others: u64 = holders[SEEDS_NAMED_MAX..].iter().map(|(_, bytes)| bytes).sum();
        named.push(format!("{} others {}", holders.len() - SEEDS_NAMED_MAX, byte_size::format_bytes(others)));
    }
    let taken = if named.is_empty() { String::new() } else { format!("; held by {}", named.join(", ")) };
    let [wanted, left, all] = [wanted, left, bytes_max].map(byte_size::format_bytes);
    Err(format!("its seed may need {wanted}, but {left} are left of {all} for {scope}{taken}"))
}

#[cfg(test)]
mod tests {
    use super::{MemoryCharge, SeedBudget};

    const MIB: u64 = 1 << 20;

    fn held(amounts: &[(u64, u32)]) -> Vec<(String, MemoryCharge)> {
        let charge = |(index, (mib, user)): (usize, &(u64, u32))| {
            (format!("n1.s{index}"), MemoryCharge { bytes: mib * MIB, user: *user })
        };
        amounts.iter().enumerate().map(charge).collect()
    }

    #[test]
    fn a_seed_may_use_the_budget_to_the_last_byte() {
        let budget = SeedBudget { bytes_max: Some(100 * MIB), user_bytes_max: None };
        let admit = |mib, held: &[(String, MemoryCharge)]| {
            budget.check_charge(7, MemoryCharge { bytes: mib * MIB, user: 0 }, held)
        };
        assert!(admit(100, &[]).is_ok());
        assert!(admit(40, &held(&[(60, 1)])).is_ok());
        let refused = admit(41, &held(&[(10, 0), (30, 1), (0, 0), (5, 0), (15, 0)])).unwrap_err().to_string();
        for part in ["process 7", "41.0 MiB", "40.0 MiB are left", "n1.s1 30.0 MiB", "1 others 5.0 MiB", "drop"] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        assert!(!refused.contains("n1.s2"), "it holds nothing: {refused}");
    }

    #[test]
    fn users_have_separate_budgets() {
        let budget = SeedBudget { bytes_max: None, user_bytes_max: Some(50 * MIB) };
        let admit =
            |user| budget.check_charge(7, MemoryCharge { bytes: 20 * MIB, user }, &held(&[(40, 1000), (900, 0)]));
        assert!(admit(1001).is_ok());
        assert!(admit(1000).unwrap_err().to_string().contains("user 1000"));
        assert!(SeedBudget::default().check_charge(7, MemoryCharge { bytes: u64::MAX, user: 0 }, &[]).is_ok());
    }
}
