import { listAll } from '../lib/api.ts'
import { dateTime } from '../lib/format.ts'
import { useLoad } from '../lib/load.ts'
import type { Member } from '../lib/types.ts'
import { Load } from '../ui/load.tsx'
import { Page, Section } from '../ui/page.tsx'
import { Facts } from '../ui/small.tsx'
import { Table } from '../ui/table.tsx'

/** The people of the organization. */
export default function Members() {
  const members = useLoad((signal) => listAll<Member>('/v1/members', { signal }), [])
  return (
    <Page title="Members" lead="The people of this organization, and what their roles let them do.">
      <Load of={members}>
        {(list) => (
          <Table
            label="Members"
            rows={list}
            keyOf={({ id }) => id}
            columns={[
              { title: 'E-mail', cell: ({ email }) => email },
              { title: 'Name', cell: ({ display_name }) => display_name ?? '' },
              { title: 'Role', cell: ({ role }) => role },
              { title: 'Since', cell: ({ joined_at }) => dateTime(joined_at) },
            ]}
          />
        )}
      </Load>
      <Section title="Roles">
        <Facts
          of={[
            ['viewer', 'Reads everything but keys and credentials.'],
            ['member', 'Also uses sandboxes, volumes and files.'],
            ['admin, owner', 'Also manage keys, credentials and caps.'],
          ]}
        />
      </Section>
    </Page>
  )
}
