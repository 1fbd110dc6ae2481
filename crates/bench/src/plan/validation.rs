//! Validates the document of a plan before anything runs.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use farfork_remote::inventory::{
    GROUP_ALL, HostSelection, Inventory, InventoryError, InventoryHost, SourcePosition, toml_error_text,
};
use farfork_remote::shell::is_variable_name;
use farfork_wire::NodeName;
use toml::Spanned;

use super::document::{PlanDocument, ReadyDocument, StepDocument, SweepValue, SyncDocument};
use super::error::PlanError;
use super::template::{Values, WordTemplate};
use super::{
    BenchPlan, PlanStep, ReadyCondition, StepMachines, StepProgram, SweepParameter, SyncedPath, VARIABLE_ADDRESS,
    VARIABLE_HOST, VARIABLE_PLAN,
};
use crate::benchmark::check_experiment;

/// Limit on the time of a command without `timeout_s`.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(3600);

/// The directory of the results without `results`, next to the plan.
const RESULTS_DEFAULT: &str = "results";

/// Minimum number of parts of the target of a copy: its whole directory is replaced.
const SYNC_PARTS_MIN: usize = 2;

/// Longest name of a step or parameter, in bytes. It is a part of the name of a file.
const NAME_BYTES_MAX: usize = 64;

/// Options that replace values of the file.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct PlanOverrides {
    /// Use this inventory instead of the plan's.
    #[arg(long, value_name = "FILE")]
    pub(super) inventory: Option<PathBuf>,
    /// Do not use these hosts and groups, although steps name them.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub(super) exclude: Vec<String>,
    /// Keep the results in this directory instead of the plan's.
    #[arg(long, value_name = "DIR")]
    pub(super) results: Option<PathBuf>,
    /// Give a parameter of [sweep] this value instead of the plan's. Each of several values of a parameter is a round.
    #[arg(long, value_name = "PARAMETER=VALUE", value_parser = parse_setting)]
    pub(super) set: Vec<(String, String)>,
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write a parameter and its value, such as threads=4")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Validates the text of a plan. Relative paths of the plan are relative to the directory of `file`.
pub(super) fn validate(file: &Path, text: &str, overrides: &PlanOverrides) -> Result<BenchPlan, PlanError> {
    let source = SourceText { file, text };
    let mut document: PlanDocument = toml::from_str(text).map_err(|error| {
        // Of the tables, only `ready` has this rule.
        let cause = toml_error_text(&error).replace("exactly one key", "exactly one of `port`, `line` and `file`");
        source.error(error.span().unwrap_or(0..0), cause)
    })?;
    document.cleanup.iter_mut().for_each(|step| step.once = true);
    let directory = file.parent().unwrap_or(Path::new(""));
    let absolute = |path: &Path| std::path::absolute(path).map(|path| path.to_string_lossy().into_owned());
    // An empty path has no absolute form.
    let plan_directory = absolute(&Path::new(".").join(directory)).map_err(|cause| source.error(0..0, cause))?;
    let named = document.inventory.as_ref().map(|path| directory.join(path.as_ref()));
    let inventory_file = overrides.inventory.clone().or(named);
    let inventory = inventory_file.as_deref().map(Inventory::read).transpose()?;
    let inventory_file = inventory_file.map(|path| absolute(&path)).transpose();
    let inventory_file = inventory_file.map_err(|cause| source.error(0..0, cause))?;
    let results = document.results.as_deref().unwrap_or(RESULTS_DEFAULT);
    let results = overrides.results.clone().unwrap_or_else(|| directory.join(results));
    let sweep = document.sweep.iter().map(|(name, values)| source.parameter(name, values));
    let sweep = set_parameters(sweep.collect::<Result<_, _>>()?, overrides)?;
    let validator = PlanValidator {
        source,
        document: &document,
        inventory: inventory.as_ref(),
        inventory_file: inventory_file.as_deref().unwrap_or_default(),
        exclude: &overrides.exclude,
    };
    let sync = document.sync.iter().map(|sync| validator.synced_path(sync, directory)).collect::<Result<_, _>>()?;
    let steps = validator.steps(&document.steps)?;
    let cleanup = validator.cleanup_steps()?;
    if steps.is_empty() {
        return Err(source.error(0..0, "no steps; add one with [[steps]]"));
    }
    let plan =
        BenchPlan { file: file.to_owned(), directory: plan_directory, inventory, results, sweep, sync, steps, cleanup };
    let documents = document.steps.iter().chain(&document.cleanup);
    documents.zip(plan.steps.iter().chain(&plan.cleanup)).try_for_each(|(step, valid)| {
        source.check_experiment(step.experiment.as_deref().unwrap_or_default(), valid, &plan)
    })?;
    Ok(plan)
}

/// Replaces the values of the parameters that an option names.
fn set_parameters(mut sweep: Vec<SweepParameter>, overrides: &PlanOverrides) -> Result<Vec<SweepParameter>, PlanError> {
    if let Some((unknown, _)) = overrides.set.iter().find(|(name, _)| !sweep.iter().any(|known| known.name == *name)) {
        let known = sweep.iter().map(|parameter| parameter.name.clone()).collect();
        return Err(PlanError::Parameter { name: unknown.clone(), known });
    }
    for parameter in &mut sweep {
        let named = overrides.set.iter().filter(|(name, _)| *name == parameter.name);
        let values: Vec<String> = named.map(|(_, value)| value.clone()).collect();
        if !values.is_empty() {
            parameter.values = values;
        }
    }
    Ok(sweep)
}

/// A file and its text. Makes errors from spans of the text.
#[derive(Clone, Copy)]
struct SourceText<'a> {
    file: &'a Path,
    text: &'a str,
}

impl SourceText<'_> {
    fn error(&self, span: Range<usize>, cause: impl Display) -> PlanError {
        let position = SourcePosition::of_byte(self.file, self.text, span.start);
        PlanError::Content { position, cause: cause.to_string() }
    }

    fn template(&self, text: &Spanned<String>) -> Result<WordTemplate, PlanError> {
        self.refuse_nul(text.as_ref(), text.span())?;
        WordTemplate::parse(text.as_ref()).map_err(|cause| self.error(text.span(), cause))
    }

    /// Parses the words of an experiment as `farfork bench` does, with the values of each round.
    fn check_experiment(&self, words: &[Spanned<String>], step: &PlanStep, plan: &BenchPlan) -> Result<(), PlanError> {
        let Some(first) = words.first() else { return Ok(()) };
        let hosts = plan.inventory.iter().flat_map(Inventory::hosts);
        let address = |host: &InventoryHost| (format!("{VARIABLE_ADDRESS}.{}", host.name), host.address.clone());
        let mut fixed: Values = hosts.map(address).collect();
        fixed.insert(VARIABLE_PLAN.to_owned(), plan.directory.clone());
        for round in plan.rounds() {
            let values = fixed.clone().into_iter().chain(round).collect();
            let arguments: Vec<String> = step.words.iter().map(|word| word.render(&values)).collect();
            check_experiment(&arguments).map_err(|cause| {
                // The wrong word is the one that the error names.
                let is_named = |(_, word): &(_, &String)| cause.contains(&format!("'{word}'"));
                let named = words.iter().zip(&arguments).find(is_named).map_or(first, |(word, _)| word);
                self.error(named.span(), format!("not an experiment of `farfork bench`: {cause}"))
            })?;
        }
        Ok(())
    }

    fn refuse_nul(&self, text: &str, span: Range<usize>) -> Result<(), PlanError> {
        let cause = "it contains NUL, which no argument of a program can contain";
        if text.contains('\0') { Err(self.error(span, cause)) } else { Ok(()) }
    }

    fn parameter(&self, name: &Spanned<String>, values: &[SweepValue]) -> Result<SweepParameter, PlanError> {
        let is_fixed = |name: &str| {
            [VARIABLE_HOST, VARIABLE_PLAN].contains(&name) || name.split('.').next() == Some(VARIABLE_ADDRESS)
        };
        if is_fixed(name.as_ref()) || !is_file_name(name.as_ref()) {
            let cause = format!(
                "`{}` cannot be a parameter: letters, digits and -_, not the name of another variable",
                name.as_ref()
            );
            return Err(self.error(name.span(), cause));
        }
        if values.is_empty() {
            return Err(self.error(name.span(), format!("the parameter `{}` has no values", name.as_ref())));
        }
        let text = |value: &SweepValue| match value {
            SweepValue::Text(text) => self.refuse_nul(text, name.span()).map(|()| text.clone()),
            SweepValue::Integer(number) => Ok(number.to_string()),
            SweepValue::Float(number) => Ok(number.to_string()),
        };
        Ok(SweepParameter { name: name.as_ref().clone(), values: values.iter().map(text).collect::<Result<_, _>>()? })
    }
}

/// Validates the parts of a document that need all of it.
struct PlanValidator<'a> {
    source: SourceText<'a>,
    document: &'a PlanDocument,
    inventory: Option<&'a Inventory>,
    /// The absolute path of the inventory; empty without one.
    inventory_file: &'a str,
    exclude: &'a [String],
}

impl PlanValidator<'_> {
    fn synced_path(&self, sync: &SyncDocument, directory: &Path) -> Result<SyncedPath, PlanError> {
        let to = sync.to.as_ref();
        let parts: Vec<&str> = to.split('/').filter(|part| !part.is_empty()).collect();
        if !to.starts_with('/') || parts.len() < SYNC_PARTS_MIN {
            let cause = "`to` is an absolute path with at least two parts, because the object there is replaced";
            return Err(self.source.error(sync.to.span(), cause));
        }
        self.source.refuse_nul(to, sync.to.span())?;
        if parts.iter().any(|part| [".", ".."].contains(part)) {
            let cause = "`to` has no parts `.` and `..`, because the object there is replaced";
            return Err(self.source.error(sync.to.span(), cause));
        }
        let from = directory.join(sync.from.as_ref());
        if !from.exists() {
            return Err(self.source.error(sync.from.span(), format!("there is no {}", from.display())));
        }
        Ok(SyncedPath { from, to: format!("/{}", parts.join("/")), hosts: self.hosts(&sync.hosts)? })
    }

    fn steps(&self, documents: &[StepDocument]) -> Result<Vec<PlanStep>, PlanError> {
        let mut names = BTreeSet::new();
        for step in documents {
            let name = step.name.as_ref();
            if !is_file_name(name) {
                return Err(self.source.error(step.name.span(), "a name has letters, digits and -_"));
            }
            if !names.insert(name) {
                return Err(self.source.error(step.name.span(), format!("a second step `{name}`")));
            }
        }
        let steps = (0..documents.len()).map(|index| self.step(documents, index)).collect::<Result<Vec<_>, _>>()?;
        self.check_cycles(documents, &steps)?;
        Ok(steps)
    }

    /// The steps of the cleanup, which run one after the other.
    fn cleanup_steps(&self) -> Result<Vec<PlanStep>, PlanError> {
        for step in &self.document.cleanup {
            if step.after.is_some() || step.ready.is_some() {
                let cause = "the steps of the cleanup run one after the other: `after` and `ready` have no meaning";
                return Err(self.source.error(step.name.span(), cause));
            }
        }
        let mut steps = self.steps(&self.document.cleanup)?;
        steps.iter_mut().for_each(|step| step.after.clear());
        Ok(steps)
    }

    fn step(&self, documents: &[StepDocument], index: usize) -> Result<PlanStep, PlanError> {
        let (step, defaults) = (&documents[index], &self.document.defaults);
        let (program, words) = match (&step.command, &step.experiment) {
            (Some(words), None) => (StepProgram::Command, words),
            (None, Some(words)) => (StepProgram::Experiment, words),
            _ => return Err(self.source.error(step.name.span(), "a step has either `command` or `experiment`")),
        };
        if words.is_empty() {
            return Err(self.source.error(step.name.span(), "the command has no words"));
        }
        let hosts = step.hosts.as_ref().or(defaults.hosts.as_ref().filter(|_| program == StepProgram::Command));
        let hosts = hosts.map(|hosts| self.hosts(hosts)).transpose()?;
        let (machines, experiment_hosts) = match (program, hosts) {
            (StepProgram::Command, Some(hosts)) => (StepMachines::Hosts(hosts), None),
            (_, hosts) => (StepMachines::Coordinator, hosts),
        };
        let own = step.environment.iter();
        let inherited = defaults.environment.iter().filter(|(name, _)| !step.environment.contains_key(*name));
        let environment = inherited.chain(own).map(|(name, value)| {
            let name_error = || self.source.error(name.span(), "the name of a variable has letters, digits and _");
            is_variable_name(name.as_ref()).then_some(()).ok_or_else(name_error)?;
            Ok((name.as_ref().clone(), self.words(step, &machines, value)?))
        });
        if let Some(ready) = &step.ready
            && let ReadyDocument::Line(text) | ReadyDocument::File(text) = ready.as_ref()
        {
            self.source.refuse_nul(text, ready.span())?;
        }
        if let Some(ready) = step.ready.as_ref().filter(|_| step.one_by_one) {
            return Err(self.source.error(ready.span(), "a service runs on all hosts at once; omit `one_by_one`"));
        }
        let directory = step.directory.as_ref().or(defaults.directory.as_ref());
        Ok(PlanStep {
            name: step.name.as_ref().clone(),
            program,
            words: self.all_words(words, step, &machines, experiment_hosts.as_deref())?,
            experiment_hosts,
            directory: directory.map(|directory| self.words(step, &machines, directory)).transpose()?,
            environment: environment.collect::<Result<_, PlanError>>()?,
            after: self.predecessors(documents, index)?,
            once: step.once,
            one_by_one: step.one_by_one,
            ready: step.ready.as_ref().map(|ready| match ready.as_ref() {
                ReadyDocument::Line(text) => ReadyCondition::Line(text.clone()),
                ReadyDocument::Port(port) => ReadyCondition::Port(port.get()),
                ReadyDocument::File(path) => ReadyCondition::File(path.clone()),
            }),
            timeout: step.timeout_s.or(defaults.timeout_s).map_or(TIMEOUT_DEFAULT, |s| Duration::from_secs(s.get())),
            retries: step.retries.or(defaults.retries).unwrap_or(0),
            machines,
        })
    }

    /// The words of a step. An experiment with hosts has the options that name them.
    fn all_words(
        &self,
        words: &[Spanned<String>],
        step: &StepDocument,
        machines: &StepMachines,
        experiment_hosts: Option<&[NodeName]>,
    ) -> Result<Vec<WordTemplate>, PlanError> {
        let words = words.iter().map(|word| self.words(step, machines, word));
        let mut words = words.collect::<Result<Vec<_>, _>>()?;
        if let Some(hosts) = experiment_hosts.filter(|hosts| !hosts.is_empty()) {
            let names: Vec<&str> = hosts.iter().map(NodeName::as_str).collect();
            let options = ["--inventory", self.inventory_file, "--hosts", &names.join(",")];
            words.extend(options.map(WordTemplate::literal));
        }
        Ok(words)
    }

    /// The template of a word whose variables have values on the machines of the step.
    fn words(
        &self,
        step: &StepDocument,
        machines: &StepMachines,
        text: &Spanned<String>,
    ) -> Result<WordTemplate, PlanError> {
        let template = self.source.template(text)?;
        for name in template.variables() {
            let is_parameter = self.document.sweep.keys().any(|parameter| parameter.as_ref() == name);
            let is_own =
                matches!(machines, StepMachines::Hosts(_)) && [VARIABLE_HOST, VARIABLE_ADDRESS].contains(&name);
            let host = name.strip_prefix(VARIABLE_ADDRESS).and_then(|rest| rest.strip_prefix('.'));
            let is_fixed = name == VARIABLE_PLAN || host.is_some_and(|host| self.has_host(host));
            if is_parameter && step.once {
                let cause =
                    format!("`{{{name}}}` has a value in each round, but the step runs once, before the rounds");
                return Err(self.source.error(text.span(), cause));
            }
            if !is_parameter && !is_own && !is_fixed {
                let cause = format!(
                    "no variable `{{{name}}}`: there are the parameters of [sweep], {{plan}}, {{address.HOST}}, and for \
                     commands on hosts {{host}} and {{address}}"
                );
                return Err(self.source.error(text.span(), cause));
            }
        }
        Ok(template)
    }

    fn has_host(&self, name: &str) -> bool {
        self.inventory.is_some_and(|inventory| inventory.hosts().iter().any(|host| host.name.as_str() == name))
    }

    /// The hosts that names of hosts and groups select, without those that are excluded.
    fn hosts(&self, names: &[Spanned<String>]) -> Result<Vec<NodeName>, PlanError> {
        let Some(first) = names.first() else { return Err(self.source.error(0..0, "an empty list of hosts")) };
        let Some(inventory) = self.inventory else {
            let cause = "the plan has no `inventory`; name it in the plan or with --inventory";
            return Err(self.source.error(first.span(), cause));
        };
        for name in names {
            let selection = HostSelection { hosts: vec![name.as_ref().clone()], exclude: Vec::new() };
            inventory.select(&selection).map_err(|cause| self.source.error(name.span(), cause))?;
        }
        let hosts = names.iter().map(|name| name.as_ref().clone()).collect();
        let selected = inventory.select(&HostSelection { hosts, exclude: self.exclude.to_vec() });
        // Each name has hosts, so `--exclude` omits all of them.
        let selected = match selected {
            Err(InventoryError::EmptySelection { .. }) => Vec::new(),
            selected => selected.map_err(|cause| self.source.error(first.span(), cause))?,
        };
        Ok(selected.into_iter().map(|host| host.name.clone()).collect())
    }

    /// The indices of the steps before a step: those in `after`, or the one before it in the file.
    fn predecessors(&self, documents: &[StepDocument], index: usize) -> Result<Vec<usize>, PlanError> {
        let step = &documents[index];
        let Some(after) = &step.after else {
            return Ok((0..index).rev().find(|other| !step.once || documents[*other].once).into_iter().collect());
        };
        let position = |name: &Spanned<String>| {
            let found = documents.iter().position(|other| other.name.as_ref() == name.as_ref());
            let found = found.ok_or_else(|| self.source.error(name.span(), format!("no step `{}`", name.as_ref())))?;
            if step.once && !documents[found].once {
                let cause =
                    format!("a step that runs once cannot be after `{}`, which runs in each round", name.as_ref());
                return Err(self.source.error(name.span(), cause));
            }
            Ok(found)
        };
        after.iter().map(position).collect()
    }

    /// Refuses steps that wait for each other.
    fn check_cycles(&self, documents: &[StepDocument], steps: &[PlanStep]) -> Result<(), PlanError> {
        let mut done = BTreeSet::new();
        while done.len() < steps.len() {
            let can_start = |index: &usize| steps[*index].after.iter().all(|before| done.contains(before));
            let next: Vec<usize> = (0..steps.len()).filter(|index| !done.contains(index)).filter(can_start).collect();
            if next.is_empty() {
                let waiting: Vec<usize> = (0..steps.len()).filter(|index| !done.contains(index)).collect();
                let names: Vec<&str> = waiting.iter().map(|index| steps[*index].name.as_str()).collect();
                let cause = format!("these steps wait for each other: {}", names.join(", "));
                return Err(self.source.error(documents[waiting[0]].name.span(), cause));
            }
            done.extend(next);
        }
        Ok(())
    }
}

/// Whether a name can be a part of the name of a file, and is not `all`.
fn is_file_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(is_allowed) && name != GROUP_ALL
}
