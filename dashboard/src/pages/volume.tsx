import { useMemo } from 'preact/hooks'
import { FileBrowser } from '../files/file-browser.tsx'
import { openVolumeFiles } from '../files/volume-files.ts'
import { at, get } from '../lib/api.ts'
import { bytes } from '../lib/format.ts'
import { useLoad } from '../lib/load.ts'
import { mayWrite } from '../lib/session.ts'
import type { Volume } from '../lib/types.ts'
import { Form, TextField } from '../ui/form.tsx'
import { Load } from '../ui/load.tsx'
import { Page, Section } from '../ui/page.tsx'
import { Meter, Status } from '../ui/small.tsx'
import { toast } from '../ui/toast.tsx'
import { nameOf, setCap } from './volumes.tsx'

const GIB = 1024 ** 3

/** A volume: its size against its cap, and its files. */
export default function VolumePage({ id = '' }: { readonly id?: string }) {
  const loaded = useLoad((signal) => get<Volume>(at`/v1/volumes/${id}`, { signal }), [id])
  const store = useMemo(() => openVolumeFiles(id), [id])
  return (
    <Load of={loaded}>
      {(volume) => (
        <Page
          title={nameOf(volume)}
          heading={
            <>
              {nameOf(volume)} <Status status={volume.status} />
            </>
          }
        >
          <Section title="Size">
            <Meter label="Used" used={volume.used_bytes ?? 0} limit={volume.capacity_bytes ?? null} unit={bytes} />
            {mayWrite.value && volume.kind === 'managed' ? (
              <Form
                action="Change the cap"
                onSubmit={async (values) => {
                  const gib = values.text('capacity_gib')
                  await setCap(id, gib === '' ? null : Number(gib))
                  toast('The cap is changed')
                  loaded.reload()
                }}
              >
                <TextField
                  label="Cap, GiB"
                  name="capacity_gib"
                  type="number"
                  min={1}
                  value={volume.capacity_bytes ? String(volume.capacity_bytes / GIB) : ''}
                  hint="Empty: no cap of its own. It takes effect within moments."
                />
              </Form>
            ) : null}
          </Section>
          <Section title="Files">
            <FileBrowser store={store} start="/" />
          </Section>
        </Page>
      )}
    </Load>
  )
}
