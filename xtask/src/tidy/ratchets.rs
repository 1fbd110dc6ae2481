//! Counts that may only fall: one row of `xtask/ratchets.tsv` for each crate and measure. The measures count text and names
//! that are not plain yet. A count above its row is a finding; `cargo xtask tidy --lower` writes lower counts into the file.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::names::crate_of;
use super::source::RustFile;
use super::{Finding, Tree, prose, stop_list};

const TABLE: &str = "xtask/ratchets.tsv";
const HEADING: &str = "# What may only fall: measure, where, count. `cargo xtask tidy --lower` writes lower counts.\n";
const SENTENCE_WORDS_MAX: usize = 35;

/// Files that are not counted: the changelog is history, and `stop_list.rs` contains the words themselves.
const EXEMPT: [&str; 2] = ["CHANGELOG.md", "xtask/src/tidy/stop_list.rs"];

/// Counts by measure, and by crate or `docs`.
pub(super) type Counts = BTreeMap<(String, String), usize>;

pub(super) fn check(tree: &Tree<'_>) -> Result<Vec<Finding>> {
    let limits = read_limits(tree)?;
    let mut findings = Vec::new();
    for (key, count) in counts(tree) {
        let limit = limits.get(key).copied().unwrap_or_default();
        let (measure, place) = key;
        if *count > limit {
            findings.push(Finding::whole(place, format!("{count} {measure}, {limit} at most")));
        }
    }
    Ok(findings)
}

/// Writes the current counts that are below their limits.
pub(super) fn lower(tree: &Tree<'_>) -> Result<()> {
    let mut text = HEADING.to_owned();
    for ((measure, place), limit) in read_limits(tree)? {
        let key = (measure, place);
        let lowered = counts(tree).get(&key).copied().unwrap_or_default().min(limit);
        if lowered > 0 {
            text.push_str(&format!("{}\t{}\t{lowered}\n", key.0, key.1));
        }
    }
    std::fs::write(tree.workspace.root().join(TABLE), text).with_context(|| format!("{TABLE} cannot be written"))
}

/// Sums over all crates, for the statistics at the end of a run.
pub(super) fn totals(tree: &Tree<'_>) -> BTreeMap<String, usize> {
    let mut totals = BTreeMap::new();
    for ((measure, _), count) in counts(tree) {
        *totals.entry(measure.clone()).or_default() += count;
    }
    totals
}

/// The counts of a tree, computed once.
fn counts<'t>(tree: &'t Tree<'_>) -> &'t Counts {
    tree.ratchet_counts.get_or_init(|| count(tree))
}

fn read_limits(tree: &Tree<'_>) -> Result<Counts> {
    parse(tree.files.iter().find(|file| file.path == TABLE).map_or("", |file| file.text.as_str()))
}

fn parse(table: &str) -> Result<Counts> {
    let mut counts = Counts::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let cells: Vec<&str> = line.split('\t').collect();
        let [measure, place, count] = cells[..] else { anyhow::bail!("{TABLE}: `{line}` does not have three cells") };
        let count = count.parse().with_context(|| format!("{TABLE}: `{count}` is not a number"))?;
        counts.insert((measure.to_owned(), place.to_owned()), count);
    }
    Ok(counts)
}

fn count(tree: &Tree<'_>) -> Counts {
    let mut counts = Counts::new();
    let mut add = |measure: &str, place: &str, count: usize| {
        *counts.entry((measure.to_owned(), place.to_owned())).or_default() += count;
    };
    for file in tree.rust.iter().filter(|file| !EXEMPT.contains(&file.path.as_str())) {
        let place = crate_of(&file.path);
        add("tuple parameters of unlike things", place, unlike_tuples(&file.code));
        add("stop-list words in bindings", place, stop_words_in_bindings(file));
        add_prose(&mut add, place, &prose::of_comments(file));
    }
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md") && !EXEMPT.contains(&file.path.as_str())) {
        add_prose(&mut add, "docs", &prose::of_document(file));
    }
    counts
}

fn add_prose(add: &mut impl FnMut(&str, &str, usize), place: &str, paragraphs: &[String]) {
    for paragraph in paragraphs {
        add("stop-list words in prose", place, stop_list::count_in_prose(paragraph));
        let is_long = |sentence: &&str| sentence.split_whitespace().count() > SENTENCE_WORDS_MAX;
        add("sentences over 35 words", place, prose::sentences(paragraph).into_iter().filter(is_long).count());
    }
}

/// Counts the parameters that are tuples of different types. Such a parameter does not name its members.
fn unlike_tuples(code: &str) -> usize {
    let mut count = 0;
    for (at, _) in code.match_indices("fn ") {
        let Some(open) = code[at..].find('(') else { continue };
        let list = balanced(&code[at + open..]);
        let tuples = list.match_indices(": ").filter_map(|(colon, _)| {
            let parameter = list[colon + 2..].trim_start_matches('&').trim_start_matches("mut ");
            parameter.starts_with('(').then(|| balanced(parameter))
        });
        count += tuples.filter(|tuple| !are_alike(tuple)).count();
    }
    count
}

/// The text from the opening parenthesis to the closing one.
fn balanced(text: &str) -> &str {
    let mut depth = 0_i32;
    for (at, c) in text.char_indices() {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        if depth == 0 {
            return &text[..=at];
        }
    }
    text
}

fn are_alike(tuple: &str) -> bool {
    let members: Vec<&str> = tuple.trim_matches(['(', ')']).split(',').map(str::trim).collect();
    members.iter().filter(|member| !member.is_empty()).all(|member| *member == members[0])
}

/// Counts the locals, parameters and fields outside of tests whose names contain a word of the stop list.
fn stop_words_in_bindings(file: &RustFile) -> usize {
    let lines = file.code_lines().filter(|(line, _)| !file.is_test_line(*line));
    lines.map(|(_, code)| bindings_of(code).filter(|name| stop_list::find_in_name(name).is_some()).count()).sum()
}

/// Names after `let`, and names before a colon.
fn bindings_of(code: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let after_let = code.match_indices("let ").map(move |(at, _)| {
        let name = code[at + 4..].trim_start_matches("mut ");
        name.split(|c| !is_part(c)).next().unwrap_or_default()
    });
    let before_colon =
        code.match_indices(": ").map(move |(at, _)| code[..at].rsplit(|c| !is_part(c)).next().unwrap_or_default());
    after_let.chain(before_colon)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlike_tuples_are_counted() {
        assert_eq!(unlike_tuples("fn f(a: (u8, u16), b: &(u8, u8), c: u8) -> (u8, u16) {}"), 1);
        assert_eq!(unlike_tuples("fn f(&self, (a, b): (u8, Vec<(u8, u16)>)) {}"), 1);
        assert_eq!(unlike_tuples("fn f() { let x: (u8, u16) = y; }"), 0);
    }

    #[test]
    fn names_of_bindings_are_found() {
        assert_eq!(bindings_of("let mut told = f(said: &str);").collect::<Vec<_>>(), ["told", "said"]);
    }

    #[test]
    fn a_table_of_counts_is_parsed() {
        assert_eq!(parse("# x\na\tb\t3\n").unwrap()[&("a".to_owned(), "b".to_owned())], 3);
        assert!(parse("a\tb").is_err());
    }
}
