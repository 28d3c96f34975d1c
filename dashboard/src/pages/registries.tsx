import { at, listAll, post, remove } from '../lib/api.ts'
import { dateTime } from '../lib/format.ts'
import { useLoad } from '../lib/load.ts'
import type { RegistryCredential } from '../lib/types.ts'
import { confirm } from '../ui/confirm.tsx'
import { Form, TextField, type FormValues } from '../ui/form.tsx'
import { Load } from '../ui/load.tsx'
import { Empty, Page, Section } from '../ui/page.tsx'
import { Table } from '../ui/table.tsx'
import { attempt, toast } from '../ui/toast.tsx'

/** Credentials with which images are pulled. */
export default function Registries() {
  const credentials = useLoad((signal) => listAll<RegistryCredential>('/v1/registry-credentials', { signal }), [])
  const save = async (values: FormValues): Promise<void> => {
    const [host, username, password] = [values.text('host'), values.text('username'), values.text('password')]
    await post('/v1/registry-credentials', { host, username, password })
    toast(`Saved the credential for ${host}`)
    credentials.reload()
  }
  const removeIt = async ({ id, host }: RegistryCredential): Promise<void> => {
    const text = 'Images that only this credential may pull can not be pulled any more.'
    if (!(await confirm({ title: `Delete the credential for ${host}?`, text, action: 'Delete' }))) return
    await remove(at`/v1/registry-credentials/${id}`)
    credentials.reload()
  }
  return (
    <Page
      title="Registries"
      lead="Names and passwords for private images. A password is stored sealed and never shown."
    >
      <Section title="Save a credential">
        <Form action="Save" onSubmit={save}>
          <div class="columns">
            <TextField label="Host" name="host" isRequired placeholder="registry.example.com" />
            <TextField label="User name" name="username" isRequired />
            <TextField label="Password or token" name="password" type="password" isRequired />
          </div>
        </Form>
      </Section>
      <Load of={credentials}>
        {(list) =>
          list.length === 0 ? (
            <Empty title="No credential yet">
              <p>Public images need none. A sandbox uses the credential whose host is that of its image.</p>
            </Empty>
          ) : (
            <Table
              label="Credentials"
              rows={list}
              keyOf={({ id }) => id}
              columns={[
                { title: 'Host', cell: ({ host }) => <span class="mono">{host}</span> },
                { title: 'User name', cell: ({ username }) => username },
                { title: 'Saved', cell: ({ created_at }) => dateTime(created_at) },
                {
                  title: '',
                  cell: (credential) => (
                    <button
                      type="button"
                      class="button small danger"
                      onClick={() => attempt(() => removeIt(credential))}
                    >
                      Delete
                    </button>
                  ),
                },
              ]}
            />
          )
        }
      </Load>
    </Page>
  )
}
