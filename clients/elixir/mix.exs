defmodule Tenure.MachineId.MixProject do
  use Mix.Project

  def project do
    [
      app: :tenure_machine_id,
      version: "0.1.0",
      elixir: "~> 1.14",
      start_permanent: Mix.env() == :prod,
      elixirc_paths: elixirc_paths(Mix.env()),
      description: "Machine IDs for NoNoncense from the tenure lease store",
      # None, and none optional: the code looks at run time for what is there.
      deps: []
    ]
  end

  def application do
    [extra_applications: [:logger, :crypto, :inets, :ssl, :public_key]]
  end

  defp elixirc_paths(:test), do: ["lib", "test/support"]
  defp elixirc_paths(_), do: ["lib"]
end
