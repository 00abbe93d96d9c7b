defmodule Tenure.MachineId.ReadmeTest do
  use ExUnit.Case, async: false

  alias Tenure.MachineId.Options

  @readme File.read!(Path.expand("../README.md", __DIR__))

  test "the example is Elixir, and its options are right" do
    for name <- ["POD_NAME", "BASE_KEY"], do: System.put_env(name, "x")
    [_, block] = Regex.run(~r/```elixir\n(.*?)```/s, @readme)
    {[{NoNoncense.MachineId, options}], _} = Code.eval_string(block)
    assert options[:strategy] == Tenure.NoNoncense.LeaseStrategy
    assert {:ok, %{identity: "x", endpoints: [_, _, _]}} = Options.new(options[:strategy_opts], "")
    assert options[:lease_duration] in 600_000..3_600_000
    assert options[:renew_interval] == 60_000
  after
    for name <- ["POD_NAME", "BASE_KEY"], do: System.delete_env(name)
  end

  test "every option is in the table, and nothing else" do
    [_, section] = Regex.run(~r/\n## Options\n(.*?)\n\n/s, @readme)
    rows = for [first | _] <- Regex.scan(~r/^\|([^|]*)\|/m, section, capture: :all_but_first), do: first
    told = for row <- rows, [_, name] <- Regex.scan(~r/`(\w+)`/, row), do: String.to_atom(name)
    assert Enum.sort(told) == Enum.sort(Options.known())
  end

  # Atoms of the sources that a caller may get: those in a position of a reason.
  test "every reason is in the README" do
    sources = Path.wildcard(Path.expand("../lib/**/*.ex", __DIR__)) |> Enum.map_join(&File.read!/1)

    patterns = [
      ~r/\{:(?:failed|next|error|refused|lost), :(\w+)/,
      ~r/"\w+" => :(\w+)/,
      ~r/defp (?:lost_)?reason\([^\n]*do: :(\w+)$/m,
      ~r/\{:inet, _family, [^\n]*-> :(\w+)$/m,
      ~r/\{:error, :retry, :(\w+)/
    ]

    reasons = for pattern <- patterns, [_, reason] <- Regex.scan(pattern, sources), uniq: true, do: reason
    reasons = reasons -- ["retry", "lost", "already_started"]
    assert length(reasons) > 25
    assert Enum.reject(reasons, &String.contains?(@readme, "`:#{&1}`")) == []
  end
end
