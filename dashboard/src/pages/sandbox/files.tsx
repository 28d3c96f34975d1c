import { useEffect, useMemo } from 'preact/hooks'
import { FileBrowser } from '../../files/file-browser.tsx'
import { openSandboxFiles } from '../../files/sandbox-files.ts'
import { Empty } from '../../ui/page.tsx'
import type { TabParts } from './tabs.ts'

/** The files of a running sandbox. */
export default function Files({ sandbox: { id, status, spec } }: TabParts) {
  const store = useMemo(() => openSandboxFiles(id), [id])
  useEffect(() => () => store.close(), [store])
  if (status !== 'running')
    return (
      <Empty title="The sandbox does not run">
        <p>Start it to see its files.</p>
      </Empty>
    )
  return <FileBrowser store={store} start={spec?.runtime.workdir ?? '/'} />
}
