//! Recordings that are killed, disks that are full, traces that are large, and readers that are not ours: with real processes.

use crate::trace::files;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

fn kvlab() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvlab"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// What is written in each of the series below.
const SEQUENCES: &str = "trace synth sinks-and-hitters --sequences 12 --len 64 --layers 2 --q-heads 2 --kv-heads 1 --head-dim 4 --seed 4 --vocab 200 --out";
const TREES: &str = "trace synth branch-trees --set problems=30 --layers 6 --seed 4 --vocab 200 --out";

fn write(what: &str, out: &Path) -> Output {
    kvlab().args(words(what)).arg(out).output().unwrap()
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Journal entries of finished sequences or problems.
fn entries(partial: &Path) -> usize {
    let Ok(found) = fs::read_dir(partial.join("journal")) else { return 0 };
    let is_entry = |name: &str| name.ends_with(".json") && name != "header.json";
    found.flatten().filter(|entry| is_entry(&entry.file_name().to_string_lossy())).count()
}

/// Kills the writer at a point of the series, or lets it end.
fn killed(what: &str, out: &Path, at: usize, micros: u64) {
    let mut child = kvlab().args(words(what)).arg(out).spawn().unwrap();
    let partial = out.with_extension("partial");
    while child.try_wait().unwrap().is_none() {
        if entries(&partial) >= at {
            std::thread::sleep(Duration::from_micros(micros));
            break;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    // SIGKILL: no handler runs. A child that ended meanwhile is no error here.
    drop(child.kill());
    child.wait().unwrap();
}

#[test]
fn a_recording_killed_at_ten_points_resumes_to_the_same_content() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    for (what, most) in [(SEQUENCES, 12_u64), (TREES, 30)] {
        let undisturbed = folder.path().join("undisturbed");
        succeeded(&write(what, &undisturbed));
        let expected = files(&undisturbed);
        for point in 0..10 {
            let out = folder.path().join("killed");
            let (at, micros) = (rng.next_u64() % (most + 1), rng.next_u64() % 30_000);
            killed(what, &out, usize::try_from(at).unwrap(), micros);
            // What is there is a whole trace or none.
            if out.exists() {
                assert!(files(&out) == expected, "point {point}: ended before it was killed");
            } else {
                succeeded(&write(what, &out));
            }
            assert!(files(&out) == expected, "point {point}: entry {at}, {micros} µs");
            assert!(!out.with_extension("partial").exists());
            fs::remove_dir_all(&out).unwrap();
        }
        fs::remove_dir_all(&undisturbed).unwrap();
    }
}

/// A limit on the size of a file stands for a disk that is full at a certain byte: the system refuses the write.
#[cfg(unix)]
#[test]
fn a_refused_write_leaves_the_finished_part_and_the_recording_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let undisturbed = folder.path().join("undisturbed");
    succeeded(&write(SEQUENCES, &undisturbed));
    let expected = files(&undisturbed);
    let largest = expected.iter().map(|(_, content)| content.len()).max().unwrap();
    let out = folder.path().join("out");
    let mut stopped_late = 0;
    // Blocks of 512 bytes: from a limit that the first files exceed to one that only the largest merged table does.
    for blocks in [8, largest / 1024, largest.div_ceil(512) - 1] {
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        let mut limited = Command::new("sh");
        limited.args(["-c", &script, env!("CARGO_BIN_EXE_kvlab")]).args(words(SEQUENCES)).arg(&out);
        let output = limited.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{blocks}: {said}");
        assert!(said.contains("no space left"), "{blocks}: {said}");
        assert!(!out.exists());
        stopped_late += usize::from(entries(&out.with_extension("partial")) > 0);
    }
    succeeded(&write(SEQUENCES, &out));
    assert!(files(&out) == expected);
    assert!(stopped_late > 0, "no limit let a sequence finish");
}

/// The same on a file system that is really full, where an unprivileged mount can be had.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_the_finished_part_and_the_recording_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, copy) = (folder.path().join("disk"), folder.path().join("copy"));
    fs::create_dir(&disk).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=160k none \"$1\" || exit 77\n\"$0\" {SEQUENCES} \"$1/trace\" 2>\"$3\"; code=$?\n\
         test $code -eq 3 || exit 1\ntest ! -e \"$1/trace\" || exit 2\nls \"$1/trace.partial/journal\" >>\"$3\"\n\
         mount -o remount,size=64m \"$1\" || exit 77\n\"$0\" {SEQUENCES} \"$1/trace\" || exit 3\ncp -r \"$1/trace\" \"$2\""
    );
    let said = folder.path().join("said");
    let mut child = Command::new("unshare");
    child.args(["-rm", "sh", "-c", &script, env!("CARGO_BIN_EXE_kvlab")]).args([&disk, &copy, &said]);
    let code = child.stderr(Stdio::null()).status().ok().and_then(|status| status.code());
    if matches!(code, None | Some(77 | 1)) && !said.exists() {
        skipped("no unprivileged mounts here");
        return;
    }
    let said = fs::read_to_string(&said).unwrap();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("no space left") && said.contains("00000.json"), "{said}");
    let undisturbed = folder.path().join("undisturbed");
    succeeded(&write(SEQUENCES, &undisturbed));
    assert!(files(&copy) == files(&undisturbed));
}

/// A skipped test must be seen: the harness shows what a macro prints only where a test fails.
pub(crate) fn skipped(why: &str) {
    use std::io::Write as _;
    std::io::stderr().write_all(format!("SKIPPED: {why}\n").as_bytes()).unwrap();
}

/// Largest resident set of a process in KiB, as the system saw it last before the end.
#[cfg(target_os = "linux")]
fn peak_kib(mut child: Child) -> u64 {
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let seen = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        peak = peak.max(seen.unwrap_or(0));
        std::thread::sleep(Duration::from_micros(200));
    }
    let output = child.wait_with_output().unwrap();
    succeeded(&output);
    peak
}

/// Ten times the trace, no more memory: a shard or a sequence is in memory at a time, and the allocator's slack.
#[cfg(target_os = "linux")]
#[test]
fn memory_does_not_grow_with_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    let peaks = |sequences: u32| {
        let out = folder.path().join(format!("s{sequences}"));
        let text = format!(
            "trace synth sinks-and-hitters --sequences {sequences} --len 512 --prompt 500 --layers 4 --q-heads 8 --kv-heads 4 --head-dim 64 --out"
        );
        let written = peak_kib(kvlab().args(words(&text)).arg(&out).spawn().unwrap());
        let validated = peak_kib(kvlab().arg("validate").arg(&out).spawn().unwrap());
        let copy = folder.path().join(format!("c{sequences}"));
        let mut slice = kvlab();
        slice.args(["trace", "slice"]).arg(&out).arg("--out").arg(&copy);
        let sliced = peak_kib(slice.spawn().unwrap());
        let bytes: u64 = files(&out).iter().map(|(_, content)| content.len() as u64).sum();
        (bytes, [written, validated, sliced])
    };
    let ((small_bytes, small), (large_bytes, large)) = (peaks(2), peaks(20));
    assert!(large_bytes > 9 * small_bytes && large_bytes > 100 << 20);
    for (what, (small, large)) in ["synth", "validate", "slice"].iter().zip(small.iter().zip(&large)) {
        assert!(*large < small + small / 2 + 16 * 1024, "{what}: {small} KiB, then {large} KiB");
    }
}

fn golden(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/traces").join(version)
}

/// The snippet of `docs/trace-format.md`, run as it stands there. `KVLAB_PYTHON` is the interpreter; with it set, nothing is skipped.
#[test]
fn stock_python_reads_a_trace_as_the_format_page_says() {
    let page = include_str!("../docs/trace-format.md");
    let snippet = page.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let given = std::env::var("KVLAB_PYTHON").ok();
    let python = given.clone().unwrap_or_else(|| "python3".to_owned());
    let can_import = Command::new(&python).args(["-c", "import numpy, safetensors, pyarrow"]).output();
    if given.is_none() && !can_import.is_ok_and(|output| output.status.success()) {
        skipped("no python3 with numpy, safetensors and pyarrow; name one in KVLAB_PYTHON");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("snippet.py");
    fs::write(&script, snippet).unwrap();
    for version in ["v1.0", "v1.1"] {
        let output = Command::new(&python).arg(&script).arg(golden(version)).output().unwrap();
        succeeded(&output);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("tokens: [1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31]"), "{version}: {said}");
        assert!(said.contains("layer 1: mean entropy 1.040 nats"), "{version}: {said}");
        assert_eq!(said.contains("branch 2 of problem 1"), version == "v1.1", "{version}: {said}");
    }
}

/// Who asks for a trace whose recording was interrupted is told where it lies and how it goes on, and who goes on otherwise, how it was begun.
#[test]
fn an_interrupted_recording_says_where_it_lies_and_how_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let record = [
        "record",
        "--branches",
        "2",
        "--count",
        "1",
        "--max-new-tokens",
        "8",
        "--ep",
        "cpu",
        "--out",
        "trees",
    ];
    let run = |args: &[&str]| {
        let done = kvlab().current_dir(folder.path()).args(args).output().unwrap();
        (done.status.code(), String::from_utf8_lossy(&[done.stderr, done.stdout].concat()).into_owned())
    };
    let with = |more: &[&'static str]| [&record[..], more].concat();
    let (code, said) = run(&with(&["--batch", "2"]));
    assert_eq!(code, Some(0), "{said}");
    std::fs::rename(folder.path().join("trees"), folder.path().join("trees.partial")).unwrap();
    for verb in ["validate", "inspect"] {
        let (code, said) = run(&[verb, "trees"]);
        assert!(code == Some(3) && said.contains("trees.partial: an unfinished recording"), "{said}");
        assert!(said.contains("to mend it: give the command that began it again"), "{said}");
    }
    for (more, part, mend) in [
        (&["--batch", "1"][..], "`decoding.batch` 2, now null", "give --batch 2"),
        (&[][..], "`decoding.batch` 2, now 8", "give --batch 2"),
        (&["--batch", "2", "--times"], "`times` false, now true", "leave out --times"),
        (&["--as-published"], "", "leave out --as-published, to go on with it; --force"),
        // What was typed, not what followed from it.
        (&["--batch", "2", "--level", "hard"], "`workload.name`", "give --workload chain --level default"),
        (&["--batch", "2", "--seed", "5"], "`workload.seed`", "give --seed 0"),
        (
            &["--batch", "2", "--one-wording"],
            "the branches of its chain-default-0-0 have other prompts",
            "`--one-wording`",
        ),
    ] {
        let (code, said) = run(&with(more));
        assert!(code == Some(3) && said.contains(part) && said.contains(mend), "{more:?}: {said}");
    }
    let plain: Vec<&str> = [&record[..1], &record[3..]].concat();
    let (code, said) = run(&plain);
    assert!(code == Some(3) && said.contains("`branches` given, now null"), "{said}");
    assert!(said.contains("give --branches as well"), "{said}");
    let more: Vec<&str> = with(&["--batch", "2"])
        .iter()
        .enumerate()
        .map(|(at, word)| if at == 2 { "3" } else { word })
        .collect();
    let (code, said) = run(&more);
    assert!(
        code == Some(3) && said.contains("has 2 branches, now it would have 3; accepted is `--branches 2`"),
        "{said}"
    );
    let (code, said) = run(&with(&["--batch", "2"]));
    assert!(code == Some(0) && !folder.path().join("trees.partial").exists(), "{said}");
    // What was done otherwise than by itself is said in words too.
    let (code, said) = run(&with(&["--as-published", "--force"]));
    assert_eq!(code, Some(0), "{said}");
    let (_, inspected) = run(&["inspect", "trees"]);
    assert!(inspected.contains("protocol  rksc-notebook: D4"), "{inspected}");
    // Killed while another trace was to take its place, before the change of places and within it.
    let (trees, partial) = (folder.path().join("trees"), folder.path().join("trees.partial"));
    fs::create_dir_all(partial.join("journal")).unwrap();
    for (args, code) in
        [(&record[..], Some(2)), (&["inspect", "trees"], Some(0)), (&["validate", "trees"], Some(0))]
    {
        let (found, said) = run(args);
        assert!(found == code && said.contains("trees.partial"), "{args:?}: {said}");
    }
    let (_, said) = run(&record);
    assert!(said.contains("an unfinished recording, which --force removes and which goes on"), "{said}");
    fs::remove_dir_all(&partial).unwrap();
    let aside = folder.path().join("trees.replaced");
    fs::rename(&trees, &aside).unwrap();
    for args in [&record[..], &["inspect", "trees"], &["validate", "trees"]] {
        let (code, said) = run(args);
        assert!(
            code == Some(3) && said.contains("trees.replaced: the trace that was at trees"),
            "{args:?}: {said}"
        );
        assert!(said.contains("or rename that folder to trees"), "{args:?}: {said}");
    }
    let (code, said) = run(&with(&["--batch", "2", "--force"]));
    assert!(code == Some(0) && trees.exists() && !aside.exists(), "{said}");
}
