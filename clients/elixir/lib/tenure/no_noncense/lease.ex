defmodule Tenure.NoNoncense.Lease do
  @moduledoc """
  A grant of a machine ID, as `Tenure.NoNoncense.LeaseStrategy` hands it to NoNoncense and gets it back.

  Opaque, but for people: `id`, `fence` (grows with every grant), `pool` and `pool_uuid`, `identity`, `cluster`.
  It holds all that renewing and releasing need, so that it works from NoNoncense's cache too. The token is a secret and
  is not inspected.
  """

  @enforce_keys [:pool, :identity, :scope, :token, :id, :fence, :pool_uuid, :cluster]
  @derive {Inspect, except: [:token, :scope]}
  defstruct [:pool, :identity, :scope, :token, :id, :fence, :pool_uuid, :cluster]

  @type t :: %__MODULE__{
          pool: String.t(),
          identity: String.t(),
          scope: tuple(),
          token: String.t(),
          id: non_neg_integer(),
          fence: pos_integer(),
          pool_uuid: String.t(),
          cluster: String.t() | nil
        }
end
