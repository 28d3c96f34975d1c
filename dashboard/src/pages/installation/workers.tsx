import { at, listAll, post } from '../../lib/api.ts'
import { dateTime, mebibytes, number } from '../../lib/format.ts'
import { useLoad } from '../../lib/load.ts'
import type { Worker } from '../../lib/types.ts'
import { confirm } from '../../ui/confirm.tsx'
import { Load } from '../../ui/load.tsx'
import { Section } from '../../ui/page.tsx'
import { Ago, Status } from '../../ui/small.tsx'
import { Table } from '../../ui/table.tsx'
import { attempt, toast } from '../../ui/toast.tsx'

const REFRESH_MS = 5_000

/** The workers with their capacity, drained and resumed here. */
export function Workers() {
  const workers = useLoad((signal) => listAll<Worker>('/v1/installation/workers', { signal }), [], {
    everyMs: REFRESH_MS,
  })
  const drain = async ({ name, sandboxes }: Worker): Promise<void> => {
    const text = `It gets no new sandboxes. The ${String(sandboxes)} that it runs go on to their end.`
    if (!(await confirm({ title: `Drain ${name}?`, text, action: 'Drain' }))) return
    await post(at`/v1/installation/workers/${name}/drain`)
    toast(`${name} drains`)
    workers.reload()
  }
  const resume = async ({ name }: Worker): Promise<void> => {
    await post(at`/v1/installation/workers/${name}/resume`)
    toast(`${name} gets sandboxes again`)
    workers.reload()
  }
  return (
    <Section title="Workers">
      <Load of={workers}>
        {(list) =>
          list.length === 0 ? (
            <p>
              No worker has joined. <code>sandyard worker token</code> prints a token for a machine.
            </p>
          ) : (
            <Table
              label="Workers"
              rows={list}
              keyOf={({ id }) => id}
              columns={[
                { title: 'Name', cell: ({ name }) => name },
                {
                  title: 'State',
                  cell: (worker) => (
                    <>
                      <Status status={worker.state} /> {noteOf(worker)}
                    </>
                  ),
                },
                { title: 'Runs by', cell: ({ driver, isolation }) => [driver, isolation].filter(Boolean).join(', ') },
                { title: 'Sandboxes', cell: ({ sandboxes }) => String(sandboxes), isNumber: true },
                { title: 'vCPUs', cell: ({ used_vcpus, vcpus }) => of(used_vcpus, vcpus, count), isNumber: true },
                {
                  title: 'Memory',
                  cell: ({ used_memory_mib, memory_mib }) => of(used_memory_mib, memory_mib, mebibytes),
                  isNumber: true,
                },
                {
                  title: 'Disks',
                  cell: ({ used_disk_mib, disk_mib }) => of(used_disk_mib, disk_mib, mebibytes),
                  isNumber: true,
                },
                { title: 'Last report', cell: ({ last_report_at }) => <Ago at={last_report_at} /> },
                {
                  title: '',
                  cell: (worker) =>
                    worker.draining_since === null ? (
                      <button type="button" class="button small" onClick={() => attempt(() => drain(worker))}>
                        Drain
                      </button>
                    ) : (
                      <button type="button" class="button small" onClick={() => attempt(() => resume(worker))}>
                        Resume
                      </button>
                    ),
                },
              ]}
            />
          )
        }
      </Load>
    </Section>
  )
}

function noteOf({ drain_deadline_at, refused_claims }: Worker): string {
  if (refused_claims !== null) return `Refused: ${refused_claims}`
  return drain_deadline_at === null ? '' : `Its sandboxes stop at ${dateTime(drain_deadline_at)}`
}

const count = (value: number): string => number(value, 0)
/** What is promised to sandboxes, and the capacity. */
const of = (used: number, limit: number | null, unit: (value: number) => string): string =>
  limit === null ? `${unit(used)}, no limit` : `${unit(used)} of ${unit(limit)}`
