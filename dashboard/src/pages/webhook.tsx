import { useState } from 'preact/hooks'
import { at, get, patch, post, remove } from '../lib/api.ts'
import { dateTime } from '../lib/format.ts'
import { useLoad } from '../lib/load.ts'
import { go } from '../lib/router.ts'
import type { Page as ListPage, RotatedSecret, Webhook, WebhookDelivery, WebhookTest } from '../lib/types.ts'
import type { PageParts } from '../routes.ts'
import { confirm } from '../ui/confirm.tsx'
import { Dialog } from '../ui/dialog.tsx'
import { Load } from '../ui/load.tsx'
import { Empty, Page, Section } from '../ui/page.tsx'
import { Ago, Copy, Facts, Status } from '../ui/small.tsx'
import { Table } from '../ui/table.tsx'
import { attempt, toast } from '../ui/toast.tsx'

/** How many of the latest deliveries are shown. */
const DELIVERIES = 100

/** One webhook: what it gets, what became of it, and what can be done. */
export default function WebhookDetails({ id = '' }: PageParts) {
  const path = at`/v1/webhooks/${id}`
  const webhook = useLoad((signal) => get<Webhook>(path, { signal }), [path])
  const deliveries = useLoad(
    (signal) => get<ListPage<WebhookDelivery>>(`${path}/deliveries`, { signal, query: { limit: DELIVERIES } }),
    [path],
  )
  const [secret, setSecret] = useState<string | null>(null)
  const [tested, setTested] = useState<WebhookTest | null>(null)
  const [shown, setShown] = useState<WebhookDelivery | null>(null)

  const setPaused = async (paused: boolean): Promise<void> => {
    await patch(path, { paused })
    webhook.reload()
    deliveries.reload()
  }
  const rotate = async (): Promise<void> => {
    const text = 'For 24 hours, messages are signed with the old secret too.'
    if (!(await confirm({ title: 'Make a new secret?', text, action: 'Rotate' }))) return
    setSecret((await post<RotatedSecret>(`${path}/rotate-secret`)).secret)
  }
  const removeIt = async (): Promise<void> => {
    const text = 'What still waits to be sent is not sent. Its deliveries are deleted.'
    if (!(await confirm({ title: 'Delete the webhook?', text, action: 'Delete' }))) return
    await remove(path)
    go('/webhooks')
  }
  const resend = async (delivery: WebhookDelivery): Promise<void> => {
    await post(at`/v1/webhooks/${id}/deliveries/${delivery.id}/resend`)
    toast('It is sent again')
    setShown(null)
    deliveries.reload()
  }
  return (
    <Page title="Webhook">
      <Load of={webhook}>
        {(one) => (
          <Section title={one.url}>
            <Facts
              of={[
                ['State', <Status key="state" status={one.paused ? 'paused' : 'active'} />],
                ['Why', one.pause_reason],
                ['Description', one.description],
                ['Gets', one.event_types?.join(', ') ?? 'all events'],
                ['Made', dateTime(one.created_at)],
              ]}
            />
            <div class="actions">
              <button
                type="button"
                class="button"
                onClick={() => attempt(async () => setTested(await post<WebhookTest>(`${path}/test`)))}
              >
                Send a test
              </button>
              <button type="button" class="button" onClick={() => attempt(() => setPaused(!one.paused))}>
                {one.paused ? 'Resume' : 'Pause'}
              </button>
              <button type="button" class="button" onClick={() => attempt(rotate)}>
                Rotate secret
              </button>
              <button type="button" class="button danger" onClick={() => attempt(removeIt)}>
                Delete
              </button>
            </div>
          </Section>
        )}
      </Load>
      {secret === null ? null : (
        <Section title="The new secret">
          <p>Copy it now. It is shown only once.</p>
          <Copy text={secret} label="Secret" />
        </Section>
      )}
      {tested === null ? null : (
        <Section title={tested.delivered ? 'The test was taken' : 'The test was not taken'}>
          <Reply of={tested} />
        </Section>
      )}
      <Section title="Deliveries">
        <button type="button" class="button small" onClick={() => deliveries.reload()}>
          Look again
        </button>
        <Load of={deliveries}>
          {({ data }) =>
            data.length === 0 ? (
              <Empty title="Nothing was sent yet">
                <p>Events that happen from now on appear here.</p>
              </Empty>
            ) : (
              <Table
                label="Deliveries"
                rows={data}
                keyOf={(delivery) => delivery.id}
                columns={[
                  { title: 'Event', cell: ({ event_type }) => event_type ?? 'no longer kept' },
                  { title: 'Status', cell: ({ status }) => <Status status={status} /> },
                  { title: 'Reply', cell: ({ reply_status, error }) => reply_status ?? error ?? '' },
                  { title: 'Sent', cell: ({ attempts }) => `${String(attempts)} times`, isNumber: true },
                  { title: 'Last', cell: ({ last_attempt_at }) => <Ago at={last_attempt_at} /> },
                  {
                    title: '',
                    cell: (delivery) => (
                      <button type="button" class="button small" onClick={() => setShown(delivery)}>
                        Show
                      </button>
                    ),
                  },
                ]}
              />
            )
          }
        </Load>
      </Section>
      {shown === null ? null : (
        <Dialog title={shown.event_type ?? 'A delivery'} isWide onClose={() => setShown(null)}>
          <Reply of={shown} />
          <h3>Request</h3>
          <pre tabindex={0} aria-label="Request">
            {shown.request_body ?? 'The event is no longer kept.'}
          </pre>
          <button type="button" class="button" onClick={() => attempt(() => resend(shown))}>
            Send again
          </button>
        </Dialog>
      )}
    </Page>
  )
}

/** What an endpoint answered. */
function Reply({ of }: { readonly of: Pick<WebhookTest, 'reply_status' | 'reply_body' | 'error' | 'duration_ms'> }) {
  return (
    <Facts
      of={[
        ['Status', of.reply_status],
        ['Took', of.duration_ms === null ? null : `${String(of.duration_ms)} ms`],
        ['Error', of.error],
        ['Reply', of.reply_body === null ? null : <span class="mono">{of.reply_body}</span>],
      ]}
    />
  )
}
