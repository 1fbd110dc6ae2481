//! `PagingStrategy`: how a child's pages are fetched (`cow`, `prefetch` or `eager`, each also with `cache` or `first`).
//! Each fork request chooses one.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::pager::readahead::REGION_SLOTS;

/// When pages are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PagingMode {
    /// Each page alone, when it is touched.
    Cow,
    /// When a page is touched, together with pages that are likely to be touched soon.
    #[default]
    Prefetch,
    /// All pages before the child's first instruction.
    Eager,
}

/// How long an owner may be unreachable, unless the fork request says otherwise: a minute, so that a link or a switch can
/// recover.
const UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The shortest and the longest time for which an owner may be unreachable. A busy owner may answer after a good part of a
/// second. With a year at most, no sum with a timestamp overflows.
const UNREACHABLE_TIMEOUT_RANGE: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(365 * 24 * 3600);

/// How pages are fetched. As text: `cow`, `prefetch` or `eager`, where `prefetch` is the default. `cache` and `first` may be
/// added after commas, or be used alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagingStrategy {
    /// When pages are fetched.
    pub mode: PagingMode,
    /// Whether the node caches fetched pages for further children of the seed, and looks pages up in its cache first.
    pub uses_cache: bool,
    /// Whether the child is treated as the first child of its seed: it neither uses the working set nor adds to it. For
    /// measurements.
    pub ignores_working_set: bool,
    /// How long an owner may be unreachable before the child's memory counts as lost.
    pub unreachable_timeout: Duration,
}

/// Why a text is not a strategy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PagingStrategyError {
    /// An unknown word.
    #[error(
        "there is no strategy `{0}`: use cow, prefetch or eager, and cache or first with any of them, as in `cow,cache`"
    )]
    Unknown(String),
    /// Two modes that exclude each other.
    #[error("strategies `{0}` and `{1}` exclude each other: use one of cow, prefetch and eager")]
    Contradiction(PagingMode, PagingMode),
}

/// The time for which an owner may be unreachable is too short or too long.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("use a time from one second to one year")]
pub struct UnreachableTimeoutError;

impl PagingStrategy {
    /// Sets the time for which an owner may be unreachable.
    ///
    /// # Errors
    /// The time is shorter than a second or longer than a year.
    pub fn set_unreachable_timeout(&mut self, timeout: Duration) -> Result<(), UnreachableTimeoutError> {
        if !UNREACHABLE_TIMEOUT_RANGE.contains(&timeout) {
            return Err(UnreachableTimeoutError);
        }
        self.unreachable_timeout = timeout;
        Ok(())
    }

    /// Maximum number of slots of a readahead window.
    pub(in crate::pager) fn window_slots_max(&self) -> u64 {
        match self.mode {
            PagingMode::Cow => 1,
            PagingMode::Prefetch | PagingMode::Eager => REGION_SLOTS,
        }
    }
}

impl Default for PagingStrategy {
    fn default() -> Self {
        Self {
            mode: PagingMode::default(),
            uses_cache: false,
            ignores_working_set: false,
            unreachable_timeout: UNREACHABLE_TIMEOUT,
        }
    }
}

impl PagingMode {
    const ALL: [Self; 3] = [Self::Cow, Self::Prefetch, Self::Eager];

    fn name(self) -> &'static str {
        match self {
            Self::Cow => "cow",
            Self::Prefetch => "prefetch",
            Self::Eager => "eager",
        }
    }
}

impl fmt::Display for PagingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

const CACHE: &str = "cache";
const FIRST: &str = "first";

impl fmt::Display for PagingStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mode)?;
        let words = [(self.uses_cache, CACHE), (self.ignores_working_set, FIRST)];
        words.iter().filter(|(is_set, _)| *is_set).try_for_each(|(_, word)| write!(f, ",{word}"))
    }
}

impl FromStr for PagingStrategy {
    type Err = PagingStrategyError;

    fn from_str(text: &str) -> Result<Self, PagingStrategyError> {
        let (mut paging, mut cache, mut first) = (None, false, false);
        for word in text.split(',').map(str::trim) {
            match PagingMode::ALL.into_iter().find(|paging| paging.name() == word) {
                Some(named) => match paging.replace(named) {
                    Some(before) if before != named => return Err(PagingStrategyError::Contradiction(before, named)),
                    _ => {}
                },
                None if word == CACHE => cache = true,
                None if word == FIRST => first = true,
                None => return Err(PagingStrategyError::Unknown(word.to_owned())),
            }
        }
        Ok(Self { mode: paging.unwrap_or_default(), uses_cache: cache, ignores_working_set: first, ..Self::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::{PagingMode, PagingStrategy, PagingStrategyError};

    #[test]
    fn strategies_are_parsed_and_shown() {
        for (text, paging, cache, first, shown) in [
            ("cow", PagingMode::Cow, false, false, "cow"),
            ("prefetch", PagingMode::Prefetch, false, false, "prefetch"),
            ("eager", PagingMode::Eager, false, false, "eager"),
            ("cache", PagingMode::Prefetch, true, false, "prefetch,cache"),
            ("cache, cow", PagingMode::Cow, true, false, "cow,cache"),
            ("eager,cache,eager", PagingMode::Eager, true, false, "eager,cache"),
            ("first", PagingMode::Prefetch, false, true, "prefetch,first"),
            ("first,cow,cache", PagingMode::Cow, true, true, "cow,cache,first"),
        ] {
            let strategy: PagingStrategy = text.parse().unwrap();
            let found = (strategy.mode, strategy.uses_cache, strategy.ignores_working_set, strategy.to_string());
            assert_eq!(found, (paging, cache, first, shown.to_owned()));
        }
    }

    #[test]
    fn contradictions_and_unknown_strategies_are_named() {
        let parse = |text: &str| text.parse::<PagingStrategy>().unwrap_err();
        assert_eq!(parse("cow,eager"), PagingStrategyError::Contradiction(PagingMode::Cow, PagingMode::Eager));
        assert_eq!(parse("cow,fast"), PagingStrategyError::Unknown("fast".to_owned()));
        assert_eq!(parse(""), PagingStrategyError::Unknown(String::new()));
    }
}
