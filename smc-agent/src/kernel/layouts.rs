//! Where SMC's fields are in kernels whose modules have no BTF (before 5.11): the only offsets of a kernel's structures
//! that this program knows by itself. A layout is of one build: it is taken only where release and version are those of its
//! builder and the running kernel's structures have the sizes that they had there. The programs look at what they read
//! before they believe it, besides, and count what does not look right (`layout_refused`).

use super::{
    btf::{Btf, Kind},
    offsets::Offset,
};

/// What the running kernel says of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Build<'a> {
    /// `uname -r`.
    pub(super) release: &'a str,
    /// `uname -v`.
    pub(super) version: &'a str,
    /// `/proc/net/protocols`, which has the size of each protocol's sockets.
    pub(super) protocols: &'a str,
}

/// Distances from the end of `struct sock`.
struct Layout {
    /// Whose builds it is of.
    is_of: fn(&Build<'_>) -> bool,
    /// Size of `struct smc_sock`.
    socket: u64,
    /// The kernel's structures that it is made of, with their sizes.
    parts: &'static [(&'static str, u32)],
    /// Global and distance in bytes.
    fields: [(&'static str, u32); 5],
}

/// Read off the `smc.ko` of Debian's 5.10.262 (`struct smc_sock` of net/smc/smc.h).
const LAYOUTS: &[Layout] = &[Layout {
    is_of: is_debian_5_10,
    socket: 1472,
    parts: &[
        ("sock", 768),
        ("rb_node", 24),
        ("spinlock", 4),
        ("wait_queue_head", 24),
        ("work_struct", 32),
        ("delayed_work", 88),
        ("tasklet_struct", 40),
        ("list_head", 16),
        ("mutex", 32),
    ],
    fields: [
        ("OFF_SMC_CLCSOCK", 0),
        ("OFF_SMC_LISTEN", 528),
        ("OFF_SMC_USE_FALLBACK", 652),
        ("OFF_SMC_FALLBACK_RSN", 656),
        ("OFF_SMC_PEER_DIAGNOSIS", 660),
    ],
}];

/// `5.10.0-46-amd64` or `5.10.0-46-cloud-amd64`, `#1 SMP Debian 5.10.262-1 (2026-07-31)`. Their real-time builds have other
/// locks, and so another layout.
fn is_debian_5_10(build: &Build<'_>) -> bool {
    let Some((abi, flavour)) = build.release.strip_prefix("5.10.0-").and_then(|rest| rest.split_once('-'))
    else {
        return false;
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number(abi)
        && matches!(flavour, "amd64" | "cloud-amd64")
        && build.version.contains(" SMP Debian 5.10.")
}

/// Whether modules of this release cannot have BTF (before 5.11).
pub(super) fn modules_have_no_btf(release: &str) -> bool {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit()).map(str::parse::<u32>);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < (5, 11))
}

/// The offsets of SMC's structures in this build, if they are known; else why they are not.
pub(super) fn of_build(build: &Build<'_>, kernel: &Btf) -> Result<Vec<Offset>, String> {
    let unknown =
        |why: &str| format!("the layout of struct smc_sock in this build of {} {why}", build.release);
    let Some(layout) = LAYOUTS.iter().find(|layout| (layout.is_of)(build)) else {
        return Err(unknown("is not known, and its modules have no BTF to tell it (5.11)"));
    };
    let size = |name: &str| kernel.find(name, Kind::Struct).and_then(|id| kernel.size_of(id));
    let differs = layout.parts.iter().find(|(name, expected)| size(name) != Some(*expected));
    if let Some((name, expected)) = differs {
        let found = size(name).map_or_else(|| "no size".to_owned(), |size| format!("{size} bytes"));
        return Err(unknown(&format!(
            "is another than the known one: struct {name} has {found}, not {expected}"
        )));
    }
    let found = size_of_sockets(build.protocols, "SMC");
    if found != Some(layout.socket) {
        let found = found.map_or_else(|| "no size".to_owned(), |size| format!("{size} bytes"));
        return Err(unknown(&format!(
            "is another than the known one: it has {found}, not {}",
            layout.socket
        )));
    }
    let end = size("sock").unwrap_or_default();
    Ok(layout.fields.iter().map(|(global, distance)| (*global, end + distance)).collect())
}

/// The second column of a protocol's line.
fn size_of_sockets(protocols: &str, protocol: &str) -> Option<u64> {
    protocols.lines().find_map(|line| {
        let mut columns = line.split_whitespace();
        (columns.next() == Some(protocol)).then(|| columns.next()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEBIAN: &str = "#1 SMP Debian 5.10.262-1 (2026-07-31)";
    const PROTOCOLS: &str = "\
protocol  size sockets  memory press maxhdr  slab module     cl co di ac io in de sh ss gs se re sp bi br ha uh gp em
SMC6      1488      0      -1   NI       0   yes  smc         n  n  n  n  n  n  n  n  n  n  n  n  n  n  n  y  y  n  n
SMC       1472      0      -1   NI       0   yes  smc         n  n  n  n  n  n  n  n  n  n  n  n  n  n  n  y  y  n  n
";

    fn build<'a>(release: &'a str, version: &'a str) -> Build<'a> {
        Build { release, version, protocols: PROTOCOLS }
    }

    #[test]
    fn only_the_builder_s_own_releases_have_its_layout() {
        for release in ["5.10.0-46-amd64", "5.10.0-8-amd64", "5.10.0-46-cloud-amd64"] {
            assert!(is_debian_5_10(&build(release, DEBIAN)), "{release}");
        }
        for (release, version) in [
            // Anolis and Alibaba Cloud Linux.
            ("5.10.134-16.al8.x86_64", "#1 SMP Mon Oct 16 17:28:11 CST 2023"),
            ("5.10.134-17.3.an8.x86_64", "#1 SMP Thu Nov 7 18:02:24 CST 2024"),
            ("5.10.134-16.1.al8.x86_64", "#1 SMP Thu Dec 7 14:11:24 UTC 2023"),
            ("5.10.134-008.ck.al8.x86_64", "#1 SMP"),
            // Amazon, openEuler, a stable release, Debian's other builds and other people's builds of Debian's name.
            ("5.10.223-211.872.amzn2.x86_64", "#1 SMP Mon Jul 29 19:52:29 UTC 2024"),
            ("5.10.0-216.0.0.115.oe2203sp4.x86_64", "#1 SMP Thu Jun 27 15:13:44 CST 2024"),
            ("5.10.262", "#1 SMP PREEMPT"),
            ("5.10.0-46-rt-amd64", "#1 SMP PREEMPT_RT Debian 5.10.262-1 (2026-07-31)"),
            ("5.10.0-46-arm64", DEBIAN),
            ("5.10.0-0.deb10.16-amd64", "#1 SMP Debian 5.10.127-2~bpo10+1 (2022-07-28)"),
            ("5.10.0-46-amd64", "#1 SMP Fri Jul 31 2026"),
            ("5.10.0--amd64", DEBIAN),
            ("5.100.0-46-amd64", DEBIAN),
            ("6.1.0-57-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-3 (2026-07-31)"),
        ] {
            assert!(!is_debian_5_10(&build(release, version)), "{release}");
        }
    }

    /// BTF of structures without members.
    fn btf(structures: &[(&str, u32)]) -> Btf {
        let (mut types, mut strings) = (Vec::new(), vec![0]);
        for (name, size) in structures {
            types.extend([u32::try_from(strings.len()).unwrap(), 4 << 24, *size]);
            strings.extend(name.bytes().chain([0]));
        }
        let types: Vec<u8> = types.into_iter().flat_map(u32::to_ne_bytes).collect();
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap().to_ne_bytes();
        let header = [
            [0x9f, 0xeb, 1, 0],
            24_u32.to_ne_bytes(),
            [0; 4],
            length(&types),
            length(&types),
            length(&strings),
        ];
        Btf::parse(&[header.concat(), types, strings].concat(), None).unwrap()
    }

    #[test]
    fn a_layout_is_taken_only_where_the_kernel_s_structures_have_its_sizes() {
        let known = build("5.10.0-46-amd64", DEBIAN);
        let parts = LAYOUTS[0].parts;
        let offsets = of_build(&known, &btf(parts)).unwrap();
        assert_eq!(offsets[0], ("OFF_SMC_CLCSOCK", 768));
        assert_eq!(offsets[4], ("OFF_SMC_PEER_DIAGNOSIS", 768 + 660));

        let mut others = parts.to_vec();
        others[8].1 = 56;
        let error = of_build(&known, &btf(&others)).unwrap_err();
        let expected = "the layout of struct smc_sock in this build of 5.10.0-46-amd64 is another than the known one: \
                        struct mutex has 56 bytes, not 32";
        assert_eq!(error, expected);
        let error = of_build(&known, &btf(&parts[1..])).unwrap_err();
        assert!(error.ends_with("struct sock has no size, not 768"), "{error}");

        let (larger, unsized_) = (PROTOCOLS.replace("1472", "1480"), "");
        let error = of_build(&Build { protocols: &larger, ..known }, &btf(parts)).unwrap_err();
        assert!(error.ends_with("is another than the known one: it has 1480 bytes, not 1472"), "{error}");
        let error = of_build(&Build { protocols: unsized_, ..known }, &btf(parts)).unwrap_err();
        assert!(error.ends_with("it has no size, not 1472"), "{error}");
    }

    #[test]
    fn other_builds_are_refused_by_name() {
        let anolis = build("5.10.134-16.an8.x86_64", "#1 SMP Mon Oct 16 17:28:11 CST 2023");
        assert_eq!(
            of_build(&anolis, &btf(LAYOUTS[0].parts)).unwrap_err(),
            "the layout of struct smc_sock in this build of 5.10.134-16.an8.x86_64 is not known, and its modules have no \
             BTF to tell it (5.11)"
        );
    }

    #[test]
    fn modules_have_btf_from_5_11_on() {
        for (release, expected) in [
            ("5.10.134-16.al8.x86_64", true),
            ("5.9.1", true),
            ("4.19.0", true),
            ("5.11.0", false),
            ("6.1.0", false),
            ("x", false),
        ] {
            assert_eq!(modules_have_no_btf(release), expected, "{release}");
        }
    }

    #[test]
    fn sizes_of_sockets_are_told_by_the_protocol_s_whole_name() {
        assert_eq!(size_of_sockets(PROTOCOLS, "SMC"), Some(1472));
        assert_eq!(size_of_sockets(PROTOCOLS, "SMC6"), Some(1488));
        assert_eq!(size_of_sockets(PROTOCOLS, "SM"), None);
        assert_eq!(size_of_sockets("SMC x\nSMC\n", "SMC"), None);
    }
}
