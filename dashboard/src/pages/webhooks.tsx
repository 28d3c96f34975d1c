import { useState } from 'preact/hooks'
import { listAll, post } from '../lib/api.ts'
import { dateTime } from '../lib/format.ts'
import { useLoad } from '../lib/load.ts'
import type { CreatedWebhook, Webhook } from '../lib/types.ts'
import { Form, TextField, type FormValues } from '../ui/form.tsx'
import { Load } from '../ui/load.tsx'
import { Empty, Page, Section } from '../ui/page.tsx'
import { Copy, Status } from '../ui/small.tsx'
import { Table } from '../ui/table.tsx'

/** URLs that get the events of the organization. */
export default function Webhooks() {
  const webhooks = useLoad((signal) => listAll<Webhook>('/v1/webhooks', { signal }), [])
  const [made, setMade] = useState<CreatedWebhook | null>(null)
  const create = async (values: FormValues): Promise<void> => {
    const types = values
      .text('event_types')
      .split(/[\s,]+/)
      .filter((type) => type !== '')
    const event_types = types.length === 0 ? null : types
    const body = { url: values.text('url'), description: values.text('description'), event_types }
    setMade(await post<CreatedWebhook>('/v1/webhooks', body))
    webhooks.reload()
  }
  return (
    <Page title="Webhooks" lead="Events are sent to these URLs as they happen, signed, and again until they are taken.">
      {made === null ? null : (
        <Section title="The secret of the new webhook">
          <p>Copy it now. It is shown only once. Your receiver checks the signature of each message with it.</p>
          <Copy text={made.secret} label="Secret" />
        </Section>
      )}
      <Section title="New webhook">
        <Form action="Create webhook" onSubmit={create}>
          <div class="columns">
            <TextField label="URL" name="url" isRequired placeholder="https://example.com/hook" />
            <TextField label="Description" name="description" />
          </div>
          <TextField
            label="Only these event types"
            name="event_types"
            placeholder="sandbox_stopped sandbox_failed"
            hint="With spaces between them. Empty: events of any type."
          />
        </Form>
      </Section>
      <Load of={webhooks}>
        {(list) =>
          list.length === 0 ? (
            <Empty title="No webhook yet">
              <p>With a webhook, another program learns at once what happens to sandboxes, members and keys.</p>
            </Empty>
          ) : (
            <Table
              label="Webhooks"
              rows={list}
              keyOf={({ id }) => id}
              columns={[
                {
                  title: 'URL',
                  cell: ({ id, url }) => (
                    <a class="mono" href={`/webhooks/${id}`}>
                      {url}
                    </a>
                  ),
                },
                { title: 'State', cell: ({ paused }) => <Status status={paused ? 'paused' : 'active'} /> },
                { title: 'Description', cell: ({ description }) => description },
                { title: 'Gets', cell: ({ event_types }) => event_types?.join(', ') ?? 'all events' },
                { title: 'Made', cell: ({ created_at }) => dateTime(created_at) },
              ]}
            />
          )
        }
      </Load>
    </Page>
  )
}
