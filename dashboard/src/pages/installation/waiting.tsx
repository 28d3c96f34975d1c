import { get } from '../../lib/api.ts'
import { number } from '../../lib/format.ts'
import { useLoad } from '../../lib/load.ts'
import type { WaitingSandboxes } from '../../lib/types.ts'
import { Load } from '../../ui/load.tsx'
import { Section } from '../../ui/page.tsx'
import { Ago } from '../../ui/small.tsx'
import { Table } from '../../ui/table.tsx'

const REFRESH_MS = 5_000

/** The sandboxes of all organizations that wait for a worker, and why. */
export function Waiting() {
  const waiting = useLoad((signal) => get<WaitingSandboxes>('/v1/installation/waiting', { signal }), [], {
    everyMs: REFRESH_MS,
  })
  return (
    <Section title="Waiting for a worker">
      <Load of={waiting}>
        {({ waiting: count, data }) =>
          count === 0 ? (
            <p>No sandbox waits.</p>
          ) : (
            <>
              <p>
                {number(count, 0)} {count === 1 ? 'sandbox waits' : 'sandboxes wait'}
                {count > data.length ? `; the first ${String(data.length)} are shown` : ''}.
              </p>
              <Table
                label="Waiting sandboxes"
                rows={data}
                keyOf={({ id }) => id}
                columns={[
                  { title: 'Sandbox', cell: ({ name }) => name },
                  { title: 'Organization', cell: ({ org }) => org },
                  { title: 'Waits', cell: ({ waits_since }) => <Ago at={waits_since} /> },
                  { title: 'Because', cell: ({ reason }) => reason },
                ]}
              />
            </>
          )
        }
      </Load>
    </Section>
  )
}
