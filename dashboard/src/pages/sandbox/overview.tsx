import { useEffect } from 'preact/hooks'
import { get } from '../../lib/api.ts'
import { followEvents } from '../../lib/events.ts'
import { dateTime, duration, mebibytes, words } from '../../lib/format.ts'
import { useLoad } from '../../lib/load.ts'
import { sandboxIdOf } from '../../lib/sandbox-list.ts'
import type { AuditEvent, Page, Spec } from '../../lib/types.ts'
import { Lazy } from '../../ui/lazy.tsx'
import { Load } from '../../ui/load.tsx'
import { Section } from '../../ui/page.tsx'
import { describeActor, isRecord, textOf } from '../../lib/describe-event.ts'
import { Facts } from '../../ui/small.tsx'
import type { TabParts } from './tabs.ts'

const EVENTS_SHOWN = 50

/** What a sandbox is, what it uses, and what happened to it. */
export default function Overview({ sandbox }: TabParts) {
  const { spec, created_at, started_at, stopped_at, isolation } = sandbox
  return (
    <div class="stack">
      <Section title="What it uses">
        <Lazy load={loadPlots} parts={{ id: sandbox.id }} />
      </Section>
      <div class="grid">
        <Section title="What it is">
          <Facts
            of={[
              ['Slug', sandbox.slug],
              ['Id', <span class="mono">{sandbox.id}</span>],
              ['Size', spec?.resources === undefined ? null : describeSize(spec.resources)],
              ['Isolation', isolation ?? 'known once it runs'],
              ['Created', dateTime(created_at)],
              ['Started', dateTime(started_at)],
              ['Stopped', dateTime(stopped_at)],
              ...Object.entries(spec?.labels ?? {}).map(([key, value]) => [`Label ${key}`, value] as const),
            ]}
          />
        </Section>
        <Section title="What happened">
          <Timeline id={sandbox.id} />
        </Section>
      </div>
    </div>
  )
}

function describeSize({ vcpus, memory_mib, disk_size_mib }: Spec['resources']): string {
  const disk = disk_size_mib === null ? '' : `, ${mebibytes(disk_size_mib)} disk`
  return `${String(vcpus)} vCPU, ${mebibytes(memory_mib)} memory${disk}`
}

const loadPlots = () => import('./plots.tsx')

/** The events of a sandbox, the newest first, with their causes. */
function Timeline({ id }: { readonly id: string }) {
  const loaded = useLoad(
    (signal) => get<Page<AuditEvent>>('/v1/events', { query: { sandbox_id: id, limit: EVENTS_SHOWN }, signal }),
    [id],
  )
  useEffect(
    () =>
      followEvents(({ payload }) => {
        if (sandboxIdOf(payload) === id) loaded.reload()
      }),
    [id],
  )
  return (
    <Load of={loaded}>
      {({ data }) => (
        <ol class="timeline">
          {data.map((event) => (
            <li key={event.id}>
              <strong>{words(event.event_type.replace(/^sandbox_/, ''))}</strong> <Cause event={event} />
              <div class="faint">
                {dateTime(event.timestamp)} · {describeActor(event.actor)}
              </div>
            </li>
          ))}
        </ol>
      )}
    </Load>
  )
}

function Cause({ event: { payload } }: { readonly event: AuditEvent }) {
  const cause = textOf(payload, 'cause')
  const phases = isRecord(payload) && isRecord(payload['start_ms']) ? Object.entries(payload['start_ms']) : []
  const parts = [
    ...(cause === null || cause === 'requested' ? [] : [cause.replaceAll('_', ' ')]),
    ...['message', 'worker'].flatMap((name) => textOf(payload, name) ?? []),
  ]
  return (
    <>
      {parts.length === 0 ? null : <span>{parts.join(' · ')}</span>}
      {phases.length === 0 ? null : (
        <div class="faint">
          {phases
            .map(
              ([phase, ms]) =>
                `${phase.replaceAll('_', ' ')} ${Number(ms) < 1000 ? `${String(Math.round(Number(ms)))} ms` : duration(Number(ms))}`,
            )
            .join(', ')}
        </div>
      )}
    </>
  )
}
