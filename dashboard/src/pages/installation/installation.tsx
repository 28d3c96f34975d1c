import { get, listAll } from '../../lib/api.ts'
import { dateTime } from '../../lib/format.ts'
import { useLoad } from '../../lib/load.ts'
import type { InstallationOrg, Plan, Readiness, Server } from '../../lib/types.ts'
import { Load } from '../../ui/load.tsx'
import { Page, Section } from '../../ui/page.tsx'
import { Status } from '../../ui/small.tsx'
import { Table } from '../../ui/table.tsx'
import { Running } from './running.tsx'
import { Waiting } from './waiting.tsx'
import { Workers } from './workers.tsx'

const REFRESH_MS = 5_000
const SLOW_REFRESH_MS = 30_000

/** The whole installation, for operators: health, workers and what they run, what waits, organizations and plans. */
export default function Installation() {
  return (
    <Page title="Installation" lead="All organizations of this server. Only operators see this page.">
      <Health />
      <Workers />
      <Waiting />
      <Running />
      <Orgs />
      <Plans />
    </Page>
  )
}

function Health() {
  const health = useLoad(
    async (signal) => {
      const [ready, servers] = await Promise.all([
        get<Readiness>('/readyz', { signal }),
        get<{ readonly data: readonly Server[] }>('/v1/installation/servers', { signal }),
      ])
      return { ready, servers: servers.data }
    },
    [],
    { everyMs: REFRESH_MS },
  )
  return (
    <Section title="Servers">
      <Load of={health}>
        {({ ready, servers }) => (
          <>
            <p>
              This server is <Status status={ready.status} />
            </p>
            <Table
              label="Servers"
              rows={servers}
              keyOf={({ url, started_at }) => `${String(url)} ${started_at}`}
              columns={[
                { title: 'Address', cell: ({ url }) => url ?? 'not told to workers' },
                { title: 'Version', cell: ({ version }) => version },
                { title: 'Schema', cell: ({ schema_version }) => String(schema_version), isNumber: true },
                { title: 'Started', cell: ({ started_at }) => dateTime(started_at) },
              ]}
            />
          </>
        )}
      </Load>
    </Section>
  )
}

function Orgs() {
  const orgs = useLoad((signal) => listAll<InstallationOrg>('/v1/installation/organizations', { signal }), [], {
    everyMs: SLOW_REFRESH_MS,
  })
  return (
    <Section title="Organizations">
      <Load of={orgs}>
        {(list) => (
          <Table
            label="Organizations"
            rows={list}
            keyOf={({ id }) => id}
            columns={[
              { title: 'Name', cell: ({ name }) => name },
              { title: 'Slug', cell: ({ slug }) => slug },
              { title: 'Plan', cell: ({ plan }) => plan },
              { title: 'Limits of its own', cell: ({ quota_overrides }) => describeLimits(quota_overrides) },
              {
                title: 'State',
                cell: ({ suspended_at }) => <Status status={suspended_at === null ? 'active' : 'suspended'} />,
              },
            ]}
          />
        )}
      </Load>
    </Section>
  )
}

function Plans() {
  const plans = useLoad((signal) => get<{ readonly data: readonly Plan[] }>('/v1/installation/plans', { signal }), [])
  return (
    <Section title="Plans">
      <Load of={plans}>
        {({ data }) => (
          <Table
            label="Plans"
            rows={data}
            keyOf={({ name }) => name}
            columns={[
              { title: 'Plan', cell: ({ name }) => name },
              { title: 'Organizations', cell: ({ orgs }) => String(orgs), isNumber: true },
              { title: 'Prices', cell: ({ has_prices }) => (has_prices ? 'yes' : 'no: included hours are a limit') },
              { title: 'Limits', cell: ({ limits }) => describeLimits(limits) },
            ]}
          />
        )}
      </Load>
      <p class="faint">
        Plans and limits are changed by <code>sandyard plan set</code>, <code>sandyard org plan</code> and{' '}
        <code>sandyard quota set</code>.
      </p>
    </Section>
  )
}

function describeLimits(limits: Readonly<Record<string, number | null>>): string {
  const set = Object.entries(limits).filter(([, value]) => value !== null)
  return set.length === 0
    ? 'none'
    : set.map(([name, value]) => `${name.replaceAll('_', ' ')} ${String(value)}`).join(', ')
}
