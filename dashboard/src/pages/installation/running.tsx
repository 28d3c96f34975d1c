import { get } from '../../lib/api.ts'
import { mebibytes, number, percent } from '../../lib/format.ts'
import { useLoad } from '../../lib/load.ts'
import type { InstallationMetrics } from '../../lib/types.ts'
import { Load } from '../../ui/load.tsx'
import { Section } from '../../ui/page.tsx'
import { Ago } from '../../ui/small.tsx'
import { Table } from '../../ui/table.tsx'

const REFRESH_MS = 5_000

/** The sandboxes of all organizations that run, with what they use. */
export function Running() {
  const running = useLoad(
    (signal) => get<InstallationMetrics>('/v1/installation/metrics', { query: { limit: 100 }, signal }),
    [],
    { everyMs: REFRESH_MS },
  )
  return (
    <Section title="What runs">
      <Load of={running}>
        {({ running: count, data, silent_workers }) => (
          <>
            {silent_workers.length === 0 ? null : (
              <div class="problem">These workers did not answer: {silent_workers.join(', ')}</div>
            )}
            {count === 0 ? (
              <p>No sandbox runs.</p>
            ) : (
              <>
                <p>
                  {number(count, 0)} {count === 1 ? 'sandbox runs' : 'sandboxes run'}
                  {count > data.length ? `; the ${String(data.length)} that use the most are shown` : ''}.
                </p>
                <Table
                  label="Running sandboxes"
                  rows={data}
                  keyOf={({ id }) => id}
                  columns={[
                    { title: 'Sandbox', cell: ({ name }) => name },
                    { title: 'Organization', cell: ({ org }) => org },
                    { title: 'Worker', cell: ({ worker }) => worker },
                    {
                      title: 'Processor',
                      cell: ({ latest, vcpus }) => (latest === null ? '' : percent((latest.used_vcpus ?? 0) / vcpus)),
                      isNumber: true,
                    },
                    {
                      title: 'Memory',
                      cell: ({ memory_mib }) => mebibytes(memory_mib),
                      isNumber: true,
                    },
                    { title: 'Since', cell: ({ started_at }) => <Ago at={started_at} /> },
                  ]}
                />
              </>
            )}
          </>
        )}
      </Load>
    </Section>
  )
}
