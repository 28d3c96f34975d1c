import { at, get, listAll, post, remove } from '../../lib/api.ts'
import { bytes, dateTime } from '../../lib/format.ts'
import { useLoad } from '../../lib/load.ts'
import { go } from '../../lib/router.ts'
import { mayWrite } from '../../lib/session.ts'
import type { Sandbox, Snapshot, SnapshotOperation } from '../../lib/types.ts'
import { confirm } from '../../ui/confirm.tsx'
import { Form, TextField, type FormValues } from '../../ui/form.tsx'
import { Load } from '../../ui/load.tsx'
import { Section } from '../../ui/page.tsx'
import { Table } from '../../ui/table.tsx'
import { attempt, toast } from '../../ui/toast.tsx'
import type { TabParts } from './tabs.ts'

const ASK_AGAIN_MS = 500
/** After this time the page stops asking. The snapshot goes on, and the list shows it. */
const LIMIT_MS = 120_000

/** Snapshots of the sandbox's disk, and copies of the sandbox. */
export default function Snapshots({ sandbox: { id, name } }: TabParts) {
  const snapshots = useLoad((signal) => listAll<Snapshot>('/v1/snapshots', { signal }), [id])
  const take = async (values: FormValues): Promise<void> => {
    const body = { kind: 'disk', sandbox_id: id, name: values.text('name') }
    await untilMade(await post<SnapshotOperation>('/v1/snapshots', body))
    toast('The snapshot is made')
    snapshots.reload()
  }
  const fork = async (values: FormValues): Promise<void> => {
    const copyName = values.text('copy')
    const body = { count: Number(values.text('count')), name: copyName === '' ? null : copyName }
    const { data } = await post<{ data: readonly Sandbox[] }>(at`/v1/sandboxes/${id}/fork`, body)
    toast(`Made ${data.map((copy) => copy.name).join(', ')}`)
    const [first] = data
    go(data.length === 1 && first !== undefined ? `/sandboxes/${first.id}` : '/')
  }
  const restore = async (snapshot: Snapshot): Promise<void> => {
    const body = { source: 'disk_snapshot', disk_snapshot_ref: { type: 'managed', id: snapshot.location.id } }
    const made = await post<Sandbox>('/v1/sandboxes', body, { query: { start: true } })
    go(`/sandboxes/${made.id}`)
  }
  const removeIt = async (snapshot: Snapshot): Promise<void> => {
    const text = 'Sandboxes that were made from it live on.'
    if (!(await confirm({ title: `Delete ${snapshot.name}?`, text, action: 'Delete' }))) return
    await remove(at`/v1/snapshots/${snapshot.location.id}`)
    snapshots.reload()
  }
  return (
    <div class="stack">
      {mayWrite.value ? (
        <div class="grid">
          <Section title="Take a snapshot">
            <p class="faint">A copy of the disk. A running sandbox goes on.</p>
            <Form action="Take a snapshot" onSubmit={take}>
              <TextField label="Name" name="name" isRequired placeholder="before-the-change" />
            </Form>
          </Section>
          <Section title="Fork">
            <p class="faint">New sandboxes with the same specification and the disk of this moment.</p>
            <Form action="Fork" onSubmit={fork}>
              <div class="columns">
                <TextField label="Copies" name="count" type="number" value="1" min={1} isRequired />
                <TextField label="Name of the copy" name="copy" field="name" placeholder="chosen for you" />
              </div>
            </Form>
          </Section>
        </div>
      ) : null}
      <Section title="Snapshots of this sandbox">
        <Load of={snapshots}>
          {(all) => {
            const own = all.filter(({ sandbox_id }) => sandbox_id === id)
            return own.length === 0 ? (
              <p class="faint">None of {name} yet.</p>
            ) : (
              <Table
                label="Snapshots"
                rows={own}
                keyOf={({ location }) => location.id}
                columns={[
                  { title: 'Name', cell: (snapshot) => snapshot.name },
                  { title: 'Size', isNumber: true, cell: ({ size_bytes }) => bytes(size_bytes) },
                  { title: 'Made', cell: ({ created_at }) => dateTime(created_at) },
                  {
                    title: '',
                    cell: (snapshot) =>
                      mayWrite.value ? (
                        <span class="row">
                          <button type="button" class="button small" onClick={() => attempt(() => restore(snapshot))}>
                            New sandbox from it
                          </button>
                          <button
                            type="button"
                            class="button small danger"
                            onClick={() => attempt(() => removeIt(snapshot))}
                          >
                            Delete
                          </button>
                        </span>
                      ) : null,
                  },
                ]}
              />
            )
          }}
        </Load>
      </Section>
    </div>
  )
}

async function untilMade(operation: SnapshotOperation): Promise<void> {
  let now = operation
  for (const endMs = Date.now() + LIMIT_MS; now.status !== 'succeeded';) {
    if (now.status === 'failed') throw new Error(now.error?.message ?? 'The snapshot could not be made.')
    if (Date.now() > endMs) throw new Error('The snapshot takes long. It goes on; look at the list later.')
    await new Promise((resolve) => setTimeout(resolve, ASK_AGAIN_MS))
    now = await get<SnapshotOperation>(at`/v1/snapshot-operations/${operation.id}`)
  }
}
