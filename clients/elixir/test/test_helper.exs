# Tests against real nodes need the server's binary; check.sh names it.
exclude = if System.get_env("TENURE_BIN"), do: [], else: [:cluster]
if exclude != [], do: IO.puts("skipped: the tests against real nodes (TENURE_BIN names no server)")

# The first request of a VM loads code, which takes seconds where the disk is busy; no test is to be late for it. Nobody
# listens there.
applications = ~w(tenure_machine_id elixir logger ex_unit kernel stdlib crypto inets ssl public_key)a
modules = Enum.flat_map(applications, &Application.spec(&1, :modules))
Enum.each(modules, &Code.ensure_loaded/1)
{:ok, _} = Application.ensure_all_started(:inets)
{:error, _} = :httpc.request(~c"http://127.0.0.1:1/")
# A test may begin again (StrategyCase.calm).
ExUnit.start(exclude: exclude, capture_log: true, timeout: 600_000)
