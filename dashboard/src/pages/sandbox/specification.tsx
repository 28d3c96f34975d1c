import { get } from '../../lib/api.ts'
import { isRecord } from '../../lib/describe-event.ts'
import { words } from '../../lib/format.ts'
import { useLoad } from '../../lib/load.ts'
import type { AuditEvent, Page } from '../../lib/types.ts'
import { Load } from '../../ui/load.tsx'
import { Section } from '../../ui/page.tsx'
import { Copy, Facts } from '../../ui/small.tsx'
import type { TabParts } from './tabs.ts'

/** The specification, exactly as it is in force, and the means by which the latest run enforces it. */
export default function Specification({ sandbox: { id, spec, isolation } }: TabParts) {
  const query = { sandbox_id: id, event_type: 'sandbox_running', limit: 1 }
  const loaded = useLoad((signal) => get<Page<AuditEvent>>('/v1/events', { query, signal }), [id])
  return (
    <div class="grid">
      <Section title="Specification">
        <Copy text={JSON.stringify(spec ?? {}, null, 2)} label="Specification" />
      </Section>
      <Section title="How the latest run enforces it">
        <Load of={loaded}>
          {({ data }) => {
            const payload = data[0]?.payload
            const facts = isRecord(payload) && isRecord(payload['facts']) ? payload['facts'] : {}
            return data.length === 0 ? (
              <p class="faint">The worker tells it when the sandbox runs for the first time.</p>
            ) : (
              <Facts
                of={[
                  ['Isolation', isolation ?? null],
                  ...Object.entries(facts).map(
                    ([name, value]) =>
                      [words(name), typeof value === 'string' ? value : JSON.stringify(value)] as const,
                  ),
                ]}
              />
            )
          }}
        </Load>
        <p class="faint">
          A request that asks for what no worker enforces is refused. So whatever the specification has is in force.
        </p>
      </Section>
    </div>
  )
}
