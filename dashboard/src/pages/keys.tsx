import { useState } from 'preact/hooks'
import { at, listAll, post, remove } from '../lib/api.ts'
import { dateTime } from '../lib/format.ts'
import { useLoad } from '../lib/load.ts'
import type { ApiKey, CreatedApiKey } from '../lib/types.ts'
import { confirm } from '../ui/confirm.tsx'
import { Form, SelectField, TextField, type FormValues } from '../ui/form.tsx'
import { Load } from '../ui/load.tsx'
import { Page, Section } from '../ui/page.tsx'
import { Ago, Copy, Status } from '../ui/small.tsx'
import { Table } from '../ui/table.tsx'
import { attempt, toast } from '../ui/toast.tsx'

const SCOPES = [
  { value: 'write', label: 'Use sandboxes, volumes and files' },
  { value: 'read', label: 'Read only' },
  { value: 'admin', label: 'Everything, also keys and credentials' },
] as const
const DAY_MS = 86_400_000
const LIFETIMES = [
  { value: '', label: 'Never' },
  { value: '7', label: 'In 7 days' },
  { value: '30', label: 'In 30 days' },
  { value: '365', label: 'In a year' },
] as const

/** API keys: made here, shown once, revoked here. */
export default function Keys() {
  const keys = useLoad((signal) => listAll<ApiKey>('/v1/api-keys', { signal }), [])
  const [made, setMade] = useState<CreatedApiKey | null>(null)
  const create = async (values: FormValues): Promise<void> => {
    const days = values.text('days')
    const expires_at = days === '' ? null : new Date(Date.now() + Number(days) * DAY_MS).toISOString()
    const body = { name: values.text('name'), scopes: [values.text('scopes')], expires_at }
    setMade(await post<CreatedApiKey>('/v1/api-keys', body))
    keys.reload()
  }
  const revoke = async ({ id, name }: ApiKey): Promise<void> => {
    const text = 'Programs that use it are refused at once, and their channels end.'
    if (!(await confirm({ title: `Revoke ${name}?`, text, action: 'Revoke' }))) return
    await remove(at`/v1/api-keys/${id}`)
    toast(`Revoked ${name}`)
    keys.reload()
  }
  return (
    <Page title="Keys" lead="Programs sign in with a key: the command line, the SDKs and your own requests.">
      {made === null ? null : (
        <Section title={`The key ${made.name}`}>
          <p>Copy it now. It is shown only once, and only its hash is stored.</p>
          <Copy text={made.key} label="Key" />
          <Copy
            text={`export MSB_BACKEND=cloud MSB_API_URL=${location.origin} MSB_API_KEY=${made.key}`}
            label="Variables"
          />
        </Section>
      )}
      <Section title="New key">
        <Form action="Create key" onSubmit={create}>
          <div class="columns">
            <TextField label="Name" name="name" isRequired placeholder="ci" />
            <SelectField label="What it may do" name="scopes" choices={SCOPES} />
            <SelectField label="Ends" name="days" field="expires_at" choices={LIFETIMES} />
          </div>
        </Form>
      </Section>
      <Load of={keys}>
        {(list) => (
          <Table
            label="Keys"
            rows={list}
            keyOf={({ id }) => id}
            columns={[
              { title: 'Name', cell: ({ name }) => name },
              { title: 'State', cell: (key) => <Status status={stateOf(key)} /> },
              { title: 'May', cell: ({ scopes }) => scopes.join(', ') },
              { title: 'Made', cell: ({ created_at }) => dateTime(created_at) },
              { title: 'Ends', cell: ({ expires_at }) => (expires_at === null ? 'never' : dateTime(expires_at)) },
              { title: 'Last used', cell: ({ last_used_at }) => <Ago at={last_used_at} /> },
              {
                title: '',
                cell: (key) =>
                  stateOf(key) === 'active' ? (
                    <button type="button" class="button small danger" onClick={() => attempt(() => revoke(key))}>
                      Revoke
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

function stateOf({ revoked_at, expires_at }: ApiKey): 'active' | 'revoked' | 'expired' {
  if (revoked_at !== null) return 'revoked'
  return expires_at !== null && Date.parse(expires_at) < Date.now() ? 'expired' : 'active'
}
