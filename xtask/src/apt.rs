//! Packages of the distribution, fetched without touching the machine's own apt state.
//!
//! Each suite gets a sources list and a state folder in the cache. The mirror's address and its access settings are
//! those of the machine; apt itself verifies the signatures against the archive's keyring.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::debver::{self, Package};
use crate::{cache, sys};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Whether this machine has what [`Suites::open`] needs.
pub(crate) fn available() -> bool {
    sys::which("apt-get").is_some() && sys::which("dpkg-deb").is_some() && Path::new(KEYRING).exists()
}

/// A set of suites with their own package lists.
pub(crate) struct Suites {
    folder: PathBuf,
    _lock: cache::Lock,
}

impl Suites {
    /// Opens `suites` with package lists as they are now: a list from last week may name versions that are gone.
    pub(crate) fn open(suites: &[&str]) -> Result<Self> {
        if !available() {
            bail!(
                "this machine has no apt with the archive keyring {KEYRING} (package debian-archive-keyring)"
            );
        }
        let name = suites.join("+");
        let lock = cache::lock(&format!("apt-{name}"))?;
        let folder = cache::root()?.join("apt").join(name);
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(part))?;
        }
        let mirrors = mirrors()?;
        let list: String = suites.iter().map(|suite| source_line(&mirrors, suite)).collect();
        let opened = Self { folder, _lock: lock };
        cache::write_file(&opened.folder.join("sources.list"), list.as_bytes())?;
        opened.update()?;
        Ok(opened)
    }

    fn update(&self) -> Result<()> {
        sys::say(format_args!("fetching package lists into {}", self.folder.display()));
        sys::output(self.apt("apt-get").args(["-q", "-o", "APT::Update::Error-Mode=any", "update"]))?;
        Ok(())
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = |name: &str| self.folder.join(name).display().to_string();
        for option in [
            format!("Dir::Etc::sourcelist={}", path("sources.list")),
            "Dir::Etc::sourceparts=-".to_owned(),
            format!("Dir::State::lists={}", path("lists")),
            format!("Dir::Cache={}", path("cache")),
            "Acquire::Languages=none".to_owned(),
            "Acquire::Retries=3".to_owned(),
            // Descriptions and icons for software centres.
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        if sys::is_root() {
            // The cache need not be readable by apt's own user.
            command.args(["-o", "APT::Sandbox::User=root"]);
        }
        command.env("LC_ALL", "C");
        command
    }

    /// All versions of all packages whose name `wanted` accepts; `pattern` narrows the search that apt does.
    pub(crate) fn find(&self, pattern: &str, wanted: impl Fn(&str) -> bool) -> Result<Vec<Package>> {
        let names = sys::output(self.apt("apt-cache").args(["search", "--names-only", pattern]))?;
        let names: Vec<&str> = names
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .filter(|name| wanted(name))
            .collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        Ok(debver::parse_madison(&sys::output(self.apt("apt-cache").arg("madison").args(names))?))
    }

    /// Downloads one package and unpacks it into `into`; nothing is installed.
    pub(crate) fn unpack(&self, package: &Package, into: &Path) -> Result<()> {
        let spool = self.folder.join("spool");
        if spool.exists() {
            fs::remove_dir_all(&spool)?;
        }
        fs::create_dir_all(&spool)?;
        sys::say(format_args!("downloading {} {}", package.name, package.version));
        let wanted = format!("{}={}", package.name, package.version);
        sys::output(self.apt("apt-get").current_dir(&spool).args(["-q", "download", &wanted]))?;
        let deb = fs::read_dir(&spool)?
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .with_context(|| format!("apt downloaded nothing for {wanted}"))?;
        sys::run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(into))?;
        fs::remove_dir_all(&spool)?;
        Ok(())
    }
}

/// Where the machine's own apt configuration gets its packages from.
struct Mirrors {
    main: String,
    security: String,
}

fn mirrors() -> Result<Mirrors> {
    let format = "$(REPO_URI) $(RELEASE)";
    let text = sys::output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        format,
        "Created-By: Packages",
    ]))?;
    pick_mirrors(&text).context("apt's configuration names no repository of the distribution")
}

fn pick_mirrors(text: &str) -> Option<Mirrors> {
    let rows: Vec<(&str, &str)> = text.lines().filter_map(|line| line.trim().split_once(' ')).collect();
    let main = rows
        .iter()
        .find(|(uri, suite)| uri.trim_end_matches('/').ends_with("/debian") && !is_security(suite));
    let main = main.or_else(|| rows.iter().find(|(_, suite)| !is_security(suite)))?.0;
    // A mirror that carries no security suite of its own usually has it next to the main one.
    let security = rows
        .iter()
        .find(|(_, suite)| is_security(suite))
        .map_or_else(|| format!("{}-security", main.trim_end_matches('/')), |(uri, _)| (*uri).to_owned());
    Some(Mirrors { main: main.to_owned(), security })
}

fn is_security(suite: &str) -> bool {
    suite.ends_with("-security")
}

fn source_line(mirrors: &Mirrors, suite: &str) -> String {
    let uri = if is_security(suite) { &mirrors.security } else { &mirrors.main };
    format!("deb [arch=amd64 signed-by={KEYRING}] {uri} {suite} main\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_come_from_the_configuration_of_the_machine() {
        let text = "mirror+file:/m/debian/ bookworm\nmirror+file:/m/sec/ bookworm-security\nhttps://x/tool nodistro\n";
        let found = pick_mirrors(text).unwrap();
        assert_eq!(found.main, "mirror+file:/m/debian/");
        assert_eq!(
            source_line(&found, "bullseye-security"),
            format!("deb [arch=amd64 signed-by={KEYRING}] mirror+file:/m/sec/ bullseye-security main\n")
        );
        assert_eq!(
            pick_mirrors("https://x/debian bookworm\n").unwrap().security,
            "https://x/debian-security"
        );
        assert!(pick_mirrors("").is_none());
    }
}
