//! Parsing alone; exit codes on a real node are shown end to end.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;

fn parse(line: &[&str]) -> Result<Cli, clap::Error> {
    let argv = std::iter::once("tenure").chain(line.iter().copied()).map(OsString::from).collect();
    Cli::try_parse_from(argv::with_long_uri(argv))
}

fn usage(line: &[&str]) -> String {
    let error = parse(line).unwrap_err();
    assert_eq!(error.exit_code(), i32::from(failure::USAGE), "{line:?}");
    error.to_string()
}

#[test]
fn the_parser_is_consistent() {
    <Cli as clap::CommandFactory>::command().debug_assert();
}

#[test]
fn the_seed_form() {
    let cli = parse(&["-uri", "amaquet://a", "CREATE", r#"{"key":"k","type":"lease","options":{}}"#]).unwrap();
    assert_eq!(cli.globals.uri, "amaquet://a");
    assert!(matches!(cli.command, Command::Ask(Ask::Raw(raw::Command::Create(_)))));
    assert!(parse(&["--json", "OP", "-"]).unwrap().globals.json);
    assert!(parse(&["OP", "-", "--json"]).unwrap().globals.json);
    for command in ["CREATE", "OP", "GET", "TYPE", "EXISTS", "EXPIRE", "TTL", "PERSIST", "DEL", "SCAN", "BATCH"] {
        assert!(parse(&[command, "{}"]).is_ok(), "{command}");
        usage(&[command]);
    }
}

#[test]
fn capitals_are_the_protocol_and_small_letters_for_people() {
    assert!(matches!(parse(&["get", "k"]).unwrap().command, Command::Ask(Ask::Get(_))));
    assert!(matches!(parse(&["GET", "{}"]).unwrap().command, Command::Ask(Ask::Raw(raw::Command::Get(_)))));
}

#[test]
fn usage_names_what_is_wrong() {
    assert!(usage(&["NOPE", "{}"]).contains("NOPE"));
    assert!(usage(&["acquire"]).contains("KEY"));
    assert!(usage(&["acquire", "k", "--ttl", "30"]).contains("30 has no unit: write 30s or 30ms"));
    assert!(usage(&["break", "k"]).contains("--reason"));
    assert!(usage(&["check", "k", "seven"]).contains("seven"));
    assert!(usage(&["ls", "--limit", "0"]).contains('0'));
    assert!(usage(&[]).contains("Usage"));
}

#[test]
fn a_foreign_command_begins_where_it_is_said() {
    let run = parse(&["run", "--key", "a", "--key", "b", "job", "--key", "c"]).unwrap();
    let Command::Run(args) = run.command else { panic!("{:?}", run.command) };
    assert_eq!((args.keys.len(), args.command.len()), (2, 3));
    assert!(parse(&["elect", "k"]).is_ok() && parse(&["elect", "k", "--", "job", "--wait"]).is_ok());
    assert!(usage(&["elect", "k", "job"]).contains("job"), "a command without -- is a mistyped key");
    assert!(usage(&["elect", "k", "--observe", "--", "job"]).contains("--observe"));
    assert!(usage(&["run", "--key", "k", "--min-hold-on", "always", "job"]).contains("--min-hold"));
}

#[test]
fn a_pool_is_run_with_or_a_lease() {
    let run = parse(&["run", "--pool", "p", "--size", "2", "--wait", "1m", "--", "job", "--key", "c"]).unwrap();
    let Command::Run(args) = run.command else { panic!("{:?}", run.command) };
    assert_eq!((args.pool.as_deref(), args.size, args.command.len()), (Some("p"), Some(2), 3));
    assert!(usage(&["run", "job"]).contains("--key"));
    assert!(usage(&["run", "--pool", "p", "--key", "k", "job"]).contains("--key"));
    assert!(usage(&["run", "--pool", "p", "--min-hold", "1h", "job"]).contains("--min-hold"));
    assert!(usage(&["run", "--key", "k", "--size", "2", "job"]).contains("--size"));
    for size in ["0", "65537", "many"] {
        assert!(usage(&["run", "--pool", "p", "--size", size, "job"]).contains(size));
    }
}

#[test]
fn machine_ids() {
    for line in [
        &["id", "acquire", "ids", "--identity", "me", "--state", "f", "--ttl", "1m"][..],
        &["id", "renew", "ids", "--slot", "3"],
        &["id", "release", "ids"],
        &["id", "holders", "ids", "--all", "--json"],
        &["id", "holders", "ids", "--id", "3"],
        &["id", "run", "--pool", "ids", "--slot", "1", "--", "job", "--pool", "x"],
        &["break", "ids", "--id", "3", "--reason", "gone"],
    ] {
        assert!(parse(line).is_ok(), "{line:?}: {:?}", parse(line).err());
    }
    assert!(usage(&["id", "acquire"]).contains("POOL"));
    assert!(usage(&["id", "run", "job"]).contains("--pool"));
    assert!(usage(&["id", "run", "--pool", "ids"]).contains("COMMAND"));
    assert!(usage(&["id", "acquire", "ids", "--slot", "first"]).contains("first"));
    assert!(usage(&["id", "holders", "ids", "--all", "--id", "3"]).contains("--id"));
}

#[test]
fn a_uri_is_read_only_by_those_who_need_one() {
    let cli = parse(&["--uri", "http://a", "GET", "{}"]).unwrap();
    let failure = cli.globals.session().err().unwrap();
    assert_eq!(failure.report(), failure::USAGE);
    assert!(parse(&["--uri", "http://a", "completions", "bash"]).is_ok());
}

#[test]
fn a_token_is_not_shown_by_debug() {
    let cli = parse(&["renew", "k", "--token", "secret", "--fence", "7"]).unwrap();
    assert!(!format!("{cli:?}").contains("secret"));
}
