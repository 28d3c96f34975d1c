import { useEffect, useState } from 'preact/hooks'
import { get } from '../lib/api.ts'
import { describeActor } from '../lib/describe-event.ts'
import { followEvents } from '../lib/events.ts'
import { dateTime, words } from '../lib/format.ts'
import { useLoad } from '../lib/load.ts'
import { address, setParameter } from '../lib/router.ts'
import type { AuditEvent, Page as PageOf } from '../lib/types.ts'
import { Dialog } from '../ui/dialog.tsx'
import { Load } from '../ui/load.tsx'
import { Empty, Page } from '../ui/page.tsx'
import { Copy, Facts } from '../ui/small.tsx'
import { Table } from '../ui/table.tsx'
import { attempt } from '../ui/toast.tsx'

const CATEGORIES = [
  'org',
  'quota',
  'member',
  'api_key',
  'ssh_key',
  'registry_credential',
  'webhook',
  'volume',
  'sandbox',
  'worker',
] as const
const PAGE_EVENTS = 100
/** At most so many live events are added to the list. */
const LIVE_MAX = 200

/** Whatever changed in the organization, live. */
export default function Audit() {
  const parameters = address.value.searchParams
  const filters = {
    category: parameters.get('category'),
    event_type: parameters.get('type'),
    sandbox_id: parameters.get('sandbox'),
  }
  const inputs = Object.values(filters)
  const [news, setNews] = useState<readonly AuditEvent[]>([])
  const [older, setOlder] = useState<readonly AuditEvent[]>([])
  const [cursor, setCursor] = useState<string | null>(null)
  const [shown, setShown] = useState<AuditEvent | null>(null)
  const loaded = useLoad(async (signal) => {
    const page = await get<PageOf<AuditEvent>>('/v1/events', { query: { ...filters, limit: PAGE_EVENTS }, signal })
    setCursor(page.next_cursor)
    return page.data
  }, inputs)
  useEffect(() => {
    setNews([])
    setOlder([])
    return followEvents((event) => {
      if (matches(event, filters)) setNews((old) => [event, ...old].slice(0, LIVE_MAX))
    })
  }, inputs)
  const loadMore = async (): Promise<void> => {
    const page = await get<PageOf<AuditEvent>>('/v1/events', { query: { ...filters, limit: PAGE_EVENTS, cursor } })
    setOlder([...older, ...page.data])
    setCursor(page.next_cursor)
  }
  return (
    <Page
      title="Audit"
      lead="Who changed what, and when. Events never change, and new ones appear here as they happen."
    >
      <div class="filters" role="search">
        <select
          aria-label="Category"
          value={filters.category ?? ''}
          onChange={(event) => setParameter('category', event.currentTarget.value)}
        >
          <option value="">All categories</option>
          {CATEGORIES.map((category) => (
            <option key={category} value={category}>
              {words(category)}
            </option>
          ))}
        </select>
        <input
          type="search"
          aria-label="Type of event"
          placeholder="Type, such as sandbox_failed"
          value={filters.event_type ?? ''}
          onChange={(event) => setParameter('type', event.currentTarget.value.trim())}
        />
        <input
          type="search"
          aria-label="Id of a sandbox"
          placeholder="Id of a sandbox"
          value={filters.sandbox_id ?? ''}
          onChange={(event) => setParameter('sandbox', event.currentTarget.value.trim())}
        />
      </div>
      <Load of={loaded}>
        {(data) => {
          const listed = new Set(data.map(({ id }) => id))
          const events = [...news.filter(({ id }) => !listed.has(id)), ...data, ...older]
          return events.length === 0 ? (
            <Empty title="No event matches">
              <p>Choose other filters.</p>
            </Empty>
          ) : (
            <Table
              label="Events"
              rows={events}
              keyOf={({ id }) => id}
              columns={[
                { title: 'When', cell: ({ timestamp }) => <time dateTime={timestamp}>{dateTime(timestamp)}</time> },
                {
                  title: 'What',
                  cell: (event) => (
                    <button type="button" class="link" onClick={() => setShown(event)}>
                      {words(event.event_type)}
                    </button>
                  ),
                },
                { title: 'Who', cell: ({ actor }) => describeActor(actor) },
                { title: 'About', cell: ({ payload }) => <span class="reason">{summaryOf(payload)}</span> },
              ]}
            />
          )
        }}
      </Load>
      {cursor === null ? null : (
        <button type="button" class="button" onClick={() => attempt(loadMore)}>
          Older events
        </button>
      )}
      {shown === null ? null : (
        <Dialog title={words(shown.event_type)} onClose={() => setShown(null)}>
          <Facts
            of={[
              ['When', dateTime(shown.timestamp)],
              ['Who', describeActor(shown.actor)],
              ['Category', words(shown.category)],
              ['Id', <span class="mono">{shown.id}</span>],
            ]}
          />
          <Copy text={JSON.stringify(shown.payload, null, 2)} label="Payload" />
        </Dialog>
      )}
    </Page>
  )
}

type Filters = {
  readonly category: string | null
  readonly event_type: string | null
  readonly sandbox_id: string | null
}

function matches({ category, event_type, payload }: AuditEvent, filters: Filters): boolean {
  return (
    (filters.category === null || filters.category === category) &&
    (filters.event_type === null || filters.event_type === event_type) &&
    (filters.sandbox_id === null || JSON.stringify(payload).includes(filters.sandbox_id))
  )
}

function summaryOf(payload: unknown): string {
  if (typeof payload !== 'object' || payload === null) return ''
  const texts = Object.entries(payload).flatMap(([name, value]) =>
    typeof value === 'string' && !name.endsWith('id') ? [value] : [],
  )
  return texts.slice(0, 3).join(' · ')
}
