import { at, listAll, post, remove } from '../lib/api.ts'
import { dateTime } from '../lib/format.ts'
import { useLoad } from '../lib/load.ts'
import { mayAdmin } from '../lib/session.ts'
import type { SshKey } from '../lib/types.ts'
import { confirm } from '../ui/confirm.tsx'
import { Form, TextArea, TextField, type FormValues } from '../ui/form.tsx'
import { Load } from '../ui/load.tsx'
import { Empty, Page, Section } from '../ui/page.tsx'
import { Table } from '../ui/table.tsx'
import { attempt, toast } from '../ui/toast.tsx'

/** The public keys that open SSH connections to the sandboxes. */
export default function SshKeys() {
  const keys = useLoad((signal) => listAll<SshKey>('/v1/ssh-keys', { signal }), [])
  const add = async (values: FormValues): Promise<void> => {
    await post('/v1/ssh-keys', { name: values.text('name'), public_key: values.text('public_key') })
    toast(`Added ${values.text('name')}`)
    keys.reload()
  }
  const removeIt = async ({ id, name }: SshKey): Promise<void> => {
    const text = 'SSH connections that were opened with it end.'
    if (!(await confirm({ title: `Remove ${name}?`, text, action: 'Remove' }))) return
    await remove(at`/v1/ssh-keys/${id}`)
    keys.reload()
  }
  return (
    <Page title="SSH keys" lead="Whoever has one of these keys enters every sandbox of the organization with ssh.">
      {mayAdmin.value ? (
        <Section title="Add a key">
          <Form action="Add key" onSubmit={add}>
            <TextField label="Name" name="name" isRequired placeholder="laptop" />
            <TextArea
              label="Public key"
              name="public_key"
              placeholder="ssh-ed25519 AAAA… me@laptop"
              hint="The content of ~/.ssh/id_ed25519.pub."
            />
          </Form>
        </Section>
      ) : null}
      <Load of={keys}>
        {(list) =>
          list.length === 0 ? (
            <Empty title="No SSH key yet">
              <p>With a key here, ssh, scp, git and editors work with every sandbox. The image needs no SSH server.</p>
            </Empty>
          ) : (
            <Table
              label="SSH keys"
              rows={list}
              keyOf={({ id }) => id}
              columns={[
                { title: 'Name', cell: ({ name }) => name },
                { title: 'Fingerprint', cell: ({ fingerprint }) => <span class="mono">{fingerprint}</span> },
                { title: 'Added', cell: ({ created_at }) => dateTime(created_at) },
                {
                  title: '',
                  cell: (key) =>
                    mayAdmin.value ? (
                      <button type="button" class="button small danger" onClick={() => attempt(() => removeIt(key))}>
                        Remove
                      </button>
                    ) : null,
                },
              ]}
            />
          )
        }
      </Load>
    </Page>
  )
}
