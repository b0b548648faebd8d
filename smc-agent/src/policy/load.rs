//! From paths to a policy: finds the files, reads them and their set files, and puts them together.

use super::addresses::{AddressSet, AddressSetBuilder};
use super::convert::parse::ConvertDeclaration;
use super::convert::{self, Convert, ConvertRule};
use super::diagnostic::{At, Diagnostic, Findings, Severity};
use super::literal::{nearest, prefix};
use super::model::{Action, Addresses, Limits, NamedSet, Place, Policy, Rule};
use super::parse::{AddressList, File, SetContent, SetDeclaration, parse};
use super::unreachable;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// A policy that can be used, and what is odd about it.
#[derive(Debug)]
pub struct Loaded {
    /// The policy.
    pub policy: Policy,
    /// Warnings only.
    pub warnings: Vec<Diagnostic>,
    /// SHA-256 over the names and the bytes of every file that was read: two policies that have it in common are the
    /// same.
    pub digest: [u8; 32],
}

/// Why there is no policy.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A file or directory that was named cannot be read (exit code 2).
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// What was named.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The policy, or a set file that it names, is wrong (exit code 1). Errors and warnings, by file and line.
    #[error("{}", Listed(.0))]
    Invalid(Vec<Diagnostic>),
}

/// Diagnostics one after another.
struct Listed<'a>(&'a [Diagnostic]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, diagnostic) in self.0.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            diagnostic.fmt(f)?;
        }
        Ok(())
    }
}

/// Loads the policy that the files make up; a directory stands for its `*.yaml` and `*.yml` files in order of their names.
pub fn load(paths: &[PathBuf], limits: &Limits) -> Result<Loaded, LoadError> {
    let mut sources = Vec::new();
    for file in find(paths)? {
        let bytes = crate::files::read(&file)
            .map_err(|source| LoadError::Unreadable { path: file.clone(), source })?;
        sources.push((file, bytes));
    }
    load_sources(sources, limits)
}

/// Loads a policy from one text; set files are looked for relative to `file`.
pub fn load_text(file: &Path, text: &str, limits: &Limits) -> Result<Loaded, LoadError> {
    load_sources(vec![(file.to_path_buf(), text.as_bytes().to_vec())], limits)
}

fn find(paths: &[PathBuf]) -> Result<Vec<PathBuf>, LoadError> {
    let mut files = Vec::new();
    for path in paths {
        let unreadable = |source| LoadError::Unreadable { path: path.clone(), source };
        if !std::fs::metadata(path).map_err(unreadable)?.is_dir() {
            files.push(path.clone());
            continue;
        }
        let mut found = Vec::new();
        for entry in std::fs::read_dir(path).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            // Hidden names: editors' files, and the `..data` that a ConfigMap's files are links into.
            let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            let file = entry.path();
            let yaml = file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
            if !hidden && yaml && !file.is_dir() {
                found.push(file);
            }
        }
        if found.is_empty() {
            let message = "the directory holds no policy (*.yaml, *.yml)";
            return Err(unreadable(io::Error::new(io::ErrorKind::NotFound, message)));
        }
        found.sort();
        files.append(&mut found);
    }
    if files.is_empty() {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "no policy file was named");
        return Err(LoadError::Unreadable { path: PathBuf::new(), source });
    }
    Ok(files)
}

fn load_sources(sources: Vec<(PathBuf, Vec<u8>)>, limits: &Limits) -> Result<Loaded, LoadError> {
    let mut texts = Vec::new();
    let mut broken = Vec::new();
    let mut digest = Sha256::new();
    for (file, bytes) in sources {
        add(&mut digest, &file, &bytes);
        match String::from_utf8(bytes) {
            Ok(text) => texts.push((file, text)),
            Err(error) => broken.extend(not_utf8(&file, &error.utf8_error(), error.as_bytes())),
        }
    }
    let mut findings: Vec<Findings<'_>> =
        texts.iter().map(|(file, text)| Findings::new(file, text)).collect();
    let files: Vec<File> =
        texts.iter().zip(&mut findings).map(|((_, text), findings)| parse(text, findings)).collect();
    let mut merger = Merger { texts: &texts, findings, others: broken, limits, read: Vec::new(), digest };
    let policy = merger.merge(files);
    merger.finish(policy)
}

fn not_utf8(file: &Path, error: &std::str::Utf8Error, bytes: &[u8]) -> Vec<Diagnostic> {
    let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
    let text = String::from_utf8_lossy(valid);
    let line = text.matches('\n').count();
    let column = text.rsplit('\n').next().map_or(0, |rest| rest.chars().count());
    let cut = |value: usize| u32::try_from(value + 1).unwrap_or(u32::MAX);
    let mut findings = Findings::new(file, "");
    let at = At { line: cut(line), column: cut(column), length: 1 };
    findings.error(at, "this is not UTF-8", "save the file as UTF-8");
    findings.finish()
}

/// Adds a file so that no other files, however cut, give the same digest.
fn add(digest: &mut Sha256, file: &Path, bytes: &[u8]) {
    for part in [file.as_os_str().as_encoded_bytes(), bytes] {
        digest.update(part.len().to_ne_bytes());
        digest.update(part);
    }
}

/// Where a name was declared: file number and place.
type Declared = HashMap<String, (usize, At)>;

struct Merger<'a> {
    texts: &'a [(PathBuf, String)],
    findings: Vec<Findings<'a>>,
    /// What was found in files that are no policy files.
    others: Vec<Diagnostic>,
    limits: &'a Limits,
    read: Vec<PathBuf>,
    digest: Sha256,
}

impl Merger<'_> {
    fn place(&self, file: usize, at: At) -> Place {
        Place { file: self.texts[file].0.clone(), line: at.line, column: at.column }
    }

    /// Tells of a name that is declared twice; `true` if it is new.
    fn declare(&mut self, what: &str, names: &mut Declared, name: &str, file: usize, at: At) -> bool {
        if let Some(&(first_file, first)) = names.get(name) {
            let place = self.place(first_file, first);
            let message = format!("the {what} `{name}` is declared twice, first at {place}");
            self.findings[file].error(at, message, format!("give one of the {what}s another name"));
            return false;
        }
        names.insert(name.to_owned(), (file, at));
        true
    }

    fn merge(&mut self, files: Vec<File>) -> Policy {
        let default = self.default(&files);
        let mut sets: Vec<NamedSet> = Vec::new();
        let mut by_name: HashMap<String, Arc<AddressSet>> = HashMap::new();
        let mut set_names = Declared::new();
        let mut file_rules = Vec::new();
        let mut converts = Vec::new();
        for (number, file) in files.into_iter().enumerate() {
            converts.extend(file.convert.map(|convert| (number, convert)));
            for set in file.sets {
                if !self.declare("set", &mut set_names, &set.name, number, set.at) {
                    continue;
                }
                let place = self.place(number, set.at);
                let name = set.name.clone();
                let addresses = Arc::new(self.set(number, set));
                by_name.insert(name.clone(), Arc::clone(&addresses));
                sets.push(NamedSet { name, place, addresses });
            }
            file_rules.push(file.rules);
        }

        let mut rules = Vec::new();
        let mut places = Vec::new();
        let mut rule_names = Declared::new();
        for (number, declarations) in file_rules.into_iter().enumerate() {
            for rule in declarations {
                self.declare("rule", &mut rule_names, &rule.name, number, rule.at);
                let peer = rule.peer.map(|list| self.addresses(number, &rule.name, "peer", list, &by_name));
                let local =
                    rule.local.map(|list| self.addresses(number, &rule.name, "local", list, &by_name));
                if rules.len() == self.limits.rules {
                    let message =
                        format!("this is rule {}, at most {} are possible", rules.len() + 1, rules.len());
                    self.findings[number].error(rule.at, message, "join rules that do the same");
                }
                places.push((number, rule.at));
                rules.push(Rule {
                    place: self.place(number, rule.at),
                    name: rule.name,
                    action: rule.action,
                    role: rule.role,
                    peer,
                    local,
                    ports: rule.ports,
                    log: rule.log,
                    mode: rule.mode,
                });
            }
        }
        let mut read: Vec<PathBuf> = self.texts.iter().map(|(file, _)| file.clone()).collect();
        read.append(&mut self.read);
        let mut policy = Policy { default, rules, sets, files: read, convert: None };
        self.check(&policy, &places);
        policy.convert = self.convert(&policy, converts);
        policy
    }

    /// Puts together what the files say of conversion, `None` if none does.
    fn convert(&mut self, policy: &Policy, files: Vec<(usize, ConvertDeclaration)>) -> Option<Convert> {
        if files.is_empty() {
            return None;
        }
        let mut convert = Convert::default();
        let mut names = Declared::new();
        let mut places = Vec::new();
        let mut first = None;
        for (number, file) in files {
            first = first.or(file.at.map(|at| (number, at)));
            if let Some((on, at)) = file.default {
                if let Some(place) = &convert.default_place {
                    let message = format!("`default` of `convert` stands in two files, first at {place}");
                    self.findings[number].error(at, message, "keep it in one file of the policy");
                } else {
                    convert.default_place = Some(self.place(number, at));
                    convert.default_on = on;
                }
            }
            for rule in file.rules {
                self.declare("rule", &mut names, &rule.name, number, rule.at);
                places.push((number, rule.at));
                let place = self.place(number, rule.at);
                let (name, on, selectors) = (rule.name, rule.on, rule.selectors);
                convert.rules.push(ConvertRule { name, place, on, selectors });
            }
        }
        if let Some((file, at)) = places.get(convert::MAX_RULES) {
            let (count, most) = (convert.rules.len(), convert::MAX_RULES);
            let message = format!("`convert` has {count} rules, at most {most} are possible");
            self.findings[*file].error(*at, message, "join rules that do the same: a selector takes a list");
            return Some(convert);
        }
        for (rule, cover) in convert.unreachable() {
            let cover = &convert.rules[cover];
            let (file, at) = places[rule];
            let message =
                format!("rule `{}` can never match: `{}` covers it", convert.rules[rule].name, cover.name);
            let help = format!("move it before `{}` ({}), or remove it", cover.name, cover.place);
            self.findings[file].warning(at, message, help);
        }
        if let Some((file, at)) = first
            && convert.converts()
            && let Some(what) = convert::open_to_any(policy)
        {
            let message =
                format!("TCP programs are converted, and {what} lets them use SMC with any address");
            let help = "where a path drops the SMC option their connections hang: list the peers that have SMC \
                        under `peer`, with `default: deny`";
            self.findings[file].warning(at, message, help);
        }
        Some(convert)
    }

    /// What is judged of the policy as a whole.
    fn check(&mut self, policy: &Policy, places: &[(usize, At)]) {
        let prefixes = policy.prefixes();
        if prefixes > self.limits.prefixes
            && let Some(findings) = self.findings.first_mut()
        {
            let message =
                format!("the policy has {prefixes} prefixes, at most {} are possible", self.limits.prefixes);
            findings.error(At::START, message, "");
        }
        if policy.rules.len() > self.limits.rules {
            return;
        }
        for (rule, cover) in unreachable::find(&policy.rules) {
            let cover = &policy.rules[cover];
            let (file, at) = places[rule];
            let message =
                format!("rule `{}` can never match: `{}` covers it", policy.rules[rule].name, cover.name);
            let help = format!("move it before `{}` ({}), or remove it", cover.name, cover.place);
            self.findings[file].warning(at, message, help);
        }
    }

    fn default(&mut self, files: &[File]) -> Action {
        let mut first: Option<(usize, Action, At)> = None;
        for (number, file) in files.iter().enumerate() {
            let Some((action, at)) = file.default else { continue };
            match first {
                None => first = Some((number, action, at)),
                Some((file, _, place)) => {
                    let place = self.place(file, place);
                    let message = format!("`default` stands in two files, first at {place}");
                    self.findings[number].error(at, message, "keep it in one file of the policy");
                }
            }
        }
        // A file that could not be understood may well have it.
        let certain = self.others.is_empty() && files.iter().all(|file| file.understood && !file.has_default);
        if certain && let Some(findings) = self.findings.first_mut() {
            findings.error(At::START, "`default` is missing", "write `default: allow` or `default: deny`");
        }
        first.map_or(Action::Allow, |first| first.1)
    }

    fn set(&mut self, file: usize, set: SetDeclaration) -> AddressSet {
        let (path, at) = match set.content {
            SetContent::Inline(addresses) => return addresses,
            SetContent::File(path, at) => (path, at),
        };
        let full = self.texts[file].0.parent().unwrap_or(Path::new("")).join(&path);
        let bytes = match crate::files::read(&full) {
            Ok(bytes) => bytes,
            Err(error) => {
                let message = format!("the set file `{path}` cannot be read: {error}");
                let help = format!("the path is relative to the policy file; looked for {}", full.display());
                self.findings[file].error(at, message, help);
                return AddressSet::default();
            }
        };
        add(&mut self.digest, &full, &bytes);
        self.read.push(full.clone());
        let (addresses, found) = set_file(&full, &bytes);
        if addresses.is_empty() && found.iter().all(|finding| finding.severity != Severity::Error) {
            let message = format!("the set `{}` is empty: `{path}` has no addresses", set.name);
            self.findings[file].warning(at, message, "rules that name only empty sets never match");
        }
        self.others.extend(found);
        addresses
    }

    fn addresses(
        &mut self,
        file: usize,
        rule: &str,
        what: &str,
        list: AddressList,
        sets: &HashMap<String, Arc<AddressSet>>,
    ) -> Addresses {
        let mut addresses = Addresses::default();
        let mut known = true;
        for (name, at) in &list.sets {
            if let Some(set) = sets.get(name) {
                addresses.sets.push(Arc::clone(set));
                continue;
            }
            known = false;
            let help = match nearest(name, sets.keys().map(String::as_str)) {
                Some(meant) => format!("did you mean \"@{meant}\"?"),
                None => format!("declare it under `sets`: {name}: [10.0.0.0/8]"),
            };
            self.findings[file].error(*at, format!("there is no set `@{name}`"), help);
        }
        if !list.inline.is_empty() {
            addresses.sets.push(Arc::new(list.inline));
        } else if known
            && !addresses.sets.is_empty()
            && addresses.sets.iter().all(|set| set.is_empty())
            && let Some(at) = list.at
        {
            let message = format!("rule `{rule}` can never match: its `{what}` names only empty sets");
            self.findings[file].warning(at, message, "fill the set, or remove the rule");
        }
        addresses
    }

    fn finish(self, policy: Policy) -> Result<Loaded, LoadError> {
        let mut list: Vec<Diagnostic> = self.findings.into_iter().flat_map(Findings::finish).collect();
        list.extend(self.others);
        if list.iter().any(|finding| finding.severity == Severity::Error) {
            return Err(LoadError::Invalid(list));
        }
        Ok(Loaded { policy, warnings: list, digest: self.digest.finalize().into() })
    }
}

/// Reads a set file: one address or CIDR a line, `#` begins a comment.
fn set_file(file: &Path, bytes: &[u8]) -> (AddressSet, Vec<Diagnostic>) {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => return (AddressSet::default(), not_utf8(file, &error, bytes)),
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut findings = Findings::new(file, text);
    let mut builder = AddressSetBuilder::default();
    for (number, line) in (1u32..).zip(text.lines()) {
        let content = line.split('#').next().unwrap_or_default();
        let entry = content.trim();
        if entry.is_empty() {
            continue;
        }
        let at = || {
            let before = content.chars().take_while(|c| c.is_whitespace()).count();
            let cut = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
            At { line: number, column: cut(before + 1), length: cut(entry.chars().count()) }
        };
        match prefix(entry) {
            Ok((prefix, host_bits)) => {
                if host_bits {
                    let message = format!("`{entry}` has bits set behind its prefix");
                    findings.warning(at(), message, format!("the network meant is {prefix}"));
                }
                builder.push(prefix);
            }
            Err((message, help)) => findings.error(at(), message, help),
        }
    }
    (builder.finish(), findings.finish())
}
