import { at, get, patch, post, remove } from '../lib/api.ts'
import { bytes } from '../lib/format.ts'
import { useLoad } from '../lib/load.ts'
import { mayWrite } from '../lib/session.ts'
import type { Volume } from '../lib/types.ts'
import { confirm } from '../ui/confirm.tsx'
import { Form, TextField, type FormValues } from '../ui/form.tsx'
import { Load } from '../ui/load.tsx'
import { Page, Section } from '../ui/page.tsx'
import { Ago, Status } from '../ui/small.tsx'
import { Table } from '../ui/table.tsx'
import { attempt, toast } from '../ui/toast.tsx'

const REFRESH_MS = 15_000

/** Volumes: files that outlive sandboxes. */
export default function Volumes() {
  const volumes = useLoad((signal) => get<readonly Volume[]>('/v1/volumes', { signal }), [], { everyMs: REFRESH_MS })
  const create = async (values: FormValues): Promise<void> => {
    const gib = values.text('capacity_gib')
    await post('/v1/volumes', { name: values.text('name'), capacity_gib: gib === '' ? null : Number(gib) })
    toast(`Made ${values.text('name')}`)
    volumes.reload()
  }
  const removeIt = async (volume: Volume): Promise<void> => {
    const text = 'It is deleted with all its files.'
    if (!(await confirm({ title: `Delete ${nameOf(volume)}?`, text, action: 'Delete' }))) return
    await remove(at`/v1/volumes/${volume.id}`)
    volumes.reload()
  }
  return (
    <Page title="Volumes" lead="Files that outlive sandboxes. Mount a volume when you create a sandbox.">
      {mayWrite.value ? (
        <Section title="New volume">
          <Form action="Create volume" onSubmit={create}>
            <div class="columns">
              <TextField label="Name" name="name" isRequired placeholder="data" />
              <TextField label="Cap, GiB" name="capacity_gib" type="number" min={1} placeholder="none of its own" />
            </div>
          </Form>
        </Section>
      ) : null}
      <Load of={volumes}>
        {(list) => (
          <Table
            label="Volumes"
            rows={list}
            keyOf={({ id }) => id}
            columns={[
              { title: 'Name', cell: (volume) => <a href={`/volumes/${volume.id}`}>{nameOf(volume)}</a> },
              { title: 'State', cell: ({ status }) => <Status status={status} /> },
              { title: 'Used', isNumber: true, cell: ({ used_bytes }) => sizeOf(used_bytes, 'not measured yet') },
              { title: 'Cap', isNumber: true, cell: ({ capacity_bytes }) => sizeOf(capacity_bytes, 'none') },
              { title: 'Age', isNumber: true, cell: ({ created_at }) => <Ago at={created_at} /> },
              {
                title: '',
                cell: (volume) =>
                  mayWrite.value && volume.kind === 'managed' && volume.status !== 'deleting' ? (
                    <button type="button" class="button small danger" onClick={() => attempt(() => removeIt(volume))}>
                      Delete
                    </button>
                  ) : null,
              },
            ]}
          />
        )}
      </Load>
    </Page>
  )
}

/** Changes the cap of a volume. */
export async function setCap(id: string, gib: number | null): Promise<Volume> {
  return patch<Volume>(at`/v1/volumes/${id}`, { capacity_gib: gib })
}

export const nameOf = ({ name }: Pick<Volume, 'name'>): string => name ?? 'default'

function sizeOf(size: number | null | undefined, otherwise: string): string {
  return size === null || size === undefined ? otherwise : bytes(size)
}
