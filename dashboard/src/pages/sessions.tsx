import { at, get, remove } from '../lib/api.ts'
import { dateTime } from '../lib/format.ts'
import { useLoad } from '../lib/load.ts'
import type { ListedSession } from '../lib/types.ts'
import { Load } from '../ui/load.tsx'
import { Page } from '../ui/page.tsx'
import { Ago } from '../ui/small.tsx'
import { Table } from '../ui/table.tsx'
import { attempt, toast } from '../ui/toast.tsx'

type Listed = { readonly data: readonly ListedSession[] }

/** Where the member is signed in. */
export default function Sessions() {
  const sessions = useLoad((signal) => get<Listed>('/auth/sessions', { signal }), [])
  const end = async ({ id }: ListedSession): Promise<void> => {
    await remove(at`/auth/sessions/${id}`)
    toast('Ended the session')
    sessions.reload()
  }
  return (
    <Page title="Your sessions" lead="Where you are signed in. End a session that you don't know.">
      <Load of={sessions}>
        {({ data }) => (
          <Table
            label="Sessions"
            rows={data}
            keyOf={({ id }) => id}
            columns={[
              { title: 'Browser', cell: ({ user_agent }) => user_agent ?? 'unknown' },
              { title: 'Organization', cell: ({ org_name }) => org_name },
              { title: 'Began', cell: ({ created_at }) => dateTime(created_at) },
              { title: 'Last used', cell: ({ last_seen_at }) => <Ago at={last_seen_at} /> },
              { title: 'Ends', cell: ({ expires_at }) => dateTime(expires_at) },
              {
                title: '',
                cell: (session) =>
                  session.is_current ? (
                    'this one'
                  ) : (
                    <button type="button" class="button small danger" onClick={() => attempt(() => end(session))}>
                      End
                    </button>
                  ),
              },
            ]}
          />
        )}
      </Load>
    </Page>
  )
}
