import { get } from '../lib/api.ts'
import { mebibytes, number } from '../lib/format.ts'
import { useLoad } from '../lib/load.ts'
import type { Quotas } from '../lib/types.ts'
import { Load } from '../ui/load.tsx'
import { Page, Section } from '../ui/page.tsx'
import { Facts, Meter } from '../ui/small.tsx'

const REFRESH_MS = 15_000

/** The limits of the organization, and how much of each is used. */
export default function QuotasPage() {
  const loaded = useLoad((signal) => get<Quotas>('/v1/quotas', { signal }), [], { everyMs: REFRESH_MS })
  return (
    <Page title="Quotas" lead="The operator of the server sets the limits, with a plan or for this organization alone.">
      <Load of={loaded}>
        {(quotas) => (
          <>
            {quotas.is_suspended ? <div class="problem">The organization is suspended: nothing may start.</div> : null}
            {quotas.pool_exhausted ? (
              <div class="problem">Included hours are used up: sandboxes are stopped.</div>
            ) : null}
            <Section title="In use now">
              <Meter label="Sandboxes" used={quotas.total_sandboxes} limit={quotas.max_sandboxes} unit={count} />
              <Meter
                label="Ephemeral sandboxes that run"
                used={quotas.concurrent_ephemeral_running}
                limit={quotas.max_concurrent_ephemeral_running}
                unit={count}
              />
              <Meter
                label="Persistent sandboxes that run"
                used={quotas.concurrent_persistent_running}
                limit={quotas.max_concurrent_persistent_running}
                unit={count}
              />
            </Section>
            <Section title="Included this month">
              <Meter
                label="vCPU hours"
                used={quotas.vcpu_hours_used}
                limit={included(quotas, quotas.included_vcpu_hours)}
                unit={number}
              />
              <Meter
                label="Memory, GiB hours"
                used={quotas.memory_gib_hours_used}
                limit={included(quotas, quotas.included_memory_gib_hours)}
                unit={number}
              />
              <p class="faint">
                {quotas.hard_cap
                  ? 'At the end of the included hours, sandboxes stop.'
                  : 'What goes beyond is priced by the plan.'}
              </p>
            </Section>
            <Section title="Of one sandbox, and in all">
              <Facts
                of={[
                  ['vCPUs of a sandbox', orNone(quotas.max_vcpus_per_sandbox, count)],
                  ['Memory of a sandbox', orNone(quotas.max_memory_mib_per_sandbox, mebibytes)],
                  ['Disk of a sandbox', orNone(quotas.max_disk_size_mib_per_sandbox, mebibytes)],
                  ['Minutes of a run', orNone(quotas.max_uptime_minutes_per_sandbox, count)],
                  ['Storage of all volumes', orNone(quotas.max_total_storage_gib, (gib) => mebibytes(gib * 1024))],
                  ['Ports open to everybody', orNone(quotas.max_public_previews, count)],
                  ['Webhooks', orNone(quotas.max_webhooks, count)],
                ]}
              />
            </Section>
          </>
        )}
      </Load>
    </Page>
  )
}

/** An included amount of null is nothing on a plan with prices. */
const included = ({ hard_cap }: Quotas, amount: number | null): number | null => amount ?? (hard_cap ? null : 0)
const count = (value: number): string => number(value, 0)
const orNone = (limit: number | null, unit: (value: number) => string): string =>
  limit === null ? 'no limit' : unit(limit)
