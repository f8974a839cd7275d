// @ts-check
// The panel that goes on with the picture of the opening beside lanes: the cache of the request that is looked at.

import { html } from "../html.js";
import { Panel, RequestName } from "./panel.js";
import { TokenCells } from "./token_cells.js";

/** @param {{session: Session}} props */
export function InCache({ session }) {
  session.cursor.seq.value;
  const request = session.request.value;
  return request && html`<${Panel} title=${html`In the cache <${RequestName} request=${request} />`} about="at the cursor; a click chooses the token in all views">
    <${TokenCells} session=${session} request=${request} />
  <//>`;
}
