//! `ResultDirectory`: the results that `farfork bench report` reads. Each `NAME.json` is the document of one run. The
//! file `suite.json` has the outcome of `farfork bench all`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use farfork_terminal::output;
use serde_json::Value;

use super::error::ReportError;
use super::section::{ReportSection, SECTION_VERSION};
use crate::suite::entry::SUITE_ENTRIES;
use crate::suite::outcome::{SUITE_FILE, SuiteOutcome};

/// The results in a directory.
#[derive(Debug)]
pub(crate) struct ResultDirectory {
    /// Sections by the name of their file, in the order of the report.
    pub(crate) sections: Vec<NamedSection>,
    /// The outcome of `farfork bench all`; `None` if it did not run.
    pub(crate) suite: Option<SuiteOutcome>,
}

/// A section with the name of its file, which identifies it in its directory.
#[derive(Debug)]
pub(crate) struct NamedSection {
    pub(crate) name: String,
    pub(crate) section: ReportSection,
}

impl ResultDirectory {
    /// Reads all documents of a directory.
    pub(crate) fn read(directory: &Path) -> Result<Self, ReportError> {
        let mut results = Self { sections: Vec::new(), suite: None };
        for (name, path) in list_documents(directory)? {
            if name == SUITE_FILE {
                results.suite = Some(parse(&path, read_document(&path)?)?);
            } else if let Some(section) = read_section(&path)? {
                results.sections.push(NamedSection { section, name });
            } else {
                output::print_note(format_args!("{}: its run has failed, and is not in the report", path.display()));
            }
        }
        let has_failures = results.suite.as_ref().is_some_and(|suite| suite.has_failures());
        if results.sections.is_empty() && !has_failures {
            return Err(ReportError::NoResults { path: directory.to_owned() });
        }
        // Runs that are not part of the suite follow those of the suite.
        let order = |name: &str| SUITE_ENTRIES.iter().position(|entry| entry.name == name).unwrap_or(usize::MAX);
        results.sections.sort_by_key(|named| order(&named.name));
        Ok(results)
    }

    /// The section of this file.
    pub(crate) fn find(&self, name: &str) -> Option<&ReportSection> {
        self.sections.iter().find(|named| named.name == name).map(|named| &named.section)
    }
}

/// Checks that a report can be made of a directory after a run that replaces the documents with some names, before the run
/// takes its time. The run also replaces `suite.json`.
///
/// # Errors
/// Another document is not a result, or cannot be read.
pub(crate) fn check_other_results(directory: &Path, is_replaced: impl Fn(&str) -> bool) -> Result<(), ReportError> {
    if !directory.exists() {
        return Ok(());
    }
    let documents = list_documents(directory)?.into_iter();
    let mut others = documents.filter(|(name, _)| name != SUITE_FILE && !is_replaced(name));
    others.try_for_each(|(_, path)| read_section(&path).map(drop))
}

/// The JSON files, by name.
fn list_documents(directory: &Path) -> Result<BTreeMap<String, PathBuf>, ReportError> {
    let fail = |cause| ReportError::Directory { path: directory.to_owned(), cause };
    let mut documents = BTreeMap::new();
    for entry in fs::read_dir(directory).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.extension().is_some_and(|extension| extension == "json")
            && let Some(name) = path.file_stem()
        {
            documents.insert(name.to_string_lossy().into_owned(), path.clone());
        }
    }
    Ok(documents)
}

fn read_document(path: &Path) -> Result<Value, ReportError> {
    let text = fs::read_to_string(path).map_err(|cause| ReportError::Unreadable { path: path.to_owned(), cause })?;
    serde_json::from_str(&text).map_err(|cause| ReportError::Damaged { path: path.to_owned(), cause })
}

/// Reads the section of a document; `None` if the document is the error of a run.
fn read_section(path: &Path) -> Result<Option<ReportSection>, ReportError> {
    let mut document = read_document(path)?;
    let section = document.get_mut("section").map(Value::take);
    if section.is_none() && document["error"].is_string() {
        return Ok(None);
    }
    let section = section.ok_or_else(|| ReportError::Foreign { path: path.to_owned() })?;
    match section["version"].as_u64() {
        Some(version) if version != u64::from(SECTION_VERSION) => {
            Err(ReportError::Version { path: path.to_owned(), version })
        }
        _ => parse(path, section).and_then(|section| check_rows(path, section)).map(Some),
    }
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path, value: Value) -> Result<T, ReportError> {
    serde_json::from_value(value).map_err(|cause| ReportError::Damaged { path: path.to_owned(), cause })
}

/// Checks that each row has a cell for each column, because pages index cells by column.
fn check_rows(path: &Path, section: ReportSection) -> Result<ReportSection, ReportError> {
    let is_even = |table: &super::table::ReportTable| table.rows.iter().all(|row| row.len() == table.columns.len());
    match section.tables.iter().find(|table| !is_even(table)) {
        Some(table) => {
            let text = format!("a row of the table `{}` does not have one cell for each column", table.id);
            let cause = <serde_json::Error as serde::de::Error>::custom(text);
            Err(ReportError::Damaged { path: path.to_owned(), cause })
        }
        None => Ok(section),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{ReportError, ResultDirectory, check_other_results};
    use crate::report::section::ReportSection;

    fn read(name: &str, text: &str) -> Result<ResultDirectory, ReportError> {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(name), text).unwrap();
        ResultDirectory::read(directory.path())
    }

    #[test]
    fn an_error_names_file_and_cause() {
        for (name, text, cause) in [
            ("fork.json", "{", "fork.json is damaged"),
            ("package.json", "{\"name\": 1}", "package.json is not a result"),
            ("fork.json", "{\"section\": {\"version\": 1, \"id\": 3}}", "fork.json is damaged"),
            ("fork.json", "{\"section\": {\"version\": 99}}", "version 99"),
            ("notes.txt", "", "no results"),
        ] {
            let error = read(name, text).unwrap_err();
            assert!(error.to_string().contains(cause) && !error.next_step().is_empty(), "{error}");
        }
        assert!(matches!(ResultDirectory::read("/nonexistent".as_ref()), Err(ReportError::Directory { .. })));
    }

    #[test]
    fn a_run_that_has_failed_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("fork-2.json"), "{\"error\": \"a host is down\"}").unwrap();
        assert!(matches!(ResultDirectory::read(directory.path()), Err(ReportError::NoResults { .. })));
        let section = ReportSection::new("fork", "Fork", "How long?");
        let document = serde_json::json!({ "section": section }).to_string();
        fs::write(directory.path().join("fork-1.json"), document).unwrap();
        let results = ResultDirectory::read(directory.path()).unwrap();
        assert!(results.find("fork-1").is_some() && results.sections.len() == 1);
    }

    #[test]
    fn a_foreign_document_is_found_before_a_run() {
        let directory = tempfile::tempdir().unwrap();
        let check = |name: &str| {
            fs::write(directory.path().join(name), "{").unwrap();
            check_other_results(directory.path(), |name| name == "fork")
        };
        assert!(check_other_results("/nonexistent".as_ref(), |_| false).is_ok());
        assert!(check("fork.json").is_ok() && check("suite.json").is_ok() && check("fork.jsonl").is_ok());
        assert!(check("package.json").unwrap_err().to_string().contains("package.json is damaged"));
    }

    #[test]
    fn a_row_of_another_length_is_refused() {
        let mut section = ReportSection::new("fork", "Fork", "How long?");
        let columns = vec!["MiB".to_owned(), "pause".to_owned()];
        let (id, title, rows) = ("times".to_owned(), String::new(), vec![vec![]]);
        section.tables.push(crate::report::table::ReportTable { id, title, columns, rows });
        let document = serde_json::json!({ "section": section }).to_string();
        assert!(read("fork.json", &document).unwrap_err().to_string().contains("`times`"));
    }

    #[test]
    fn a_section_is_found_by_the_name_of_its_file() {
        let section = ReportSection::new("fork", "Fork", "How long?");
        let document = serde_json::json!({ "benchmark": "fork", "section": section }).to_string();
        let results = read("fork-write.json", &document).unwrap();
        assert_eq!(results.find("fork-write"), Some(&section));
        assert!(results.find("fork").is_none() && results.suite.is_none());
    }
}
